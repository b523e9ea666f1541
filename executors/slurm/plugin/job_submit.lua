-- What Gangline knows of the nodes, at the submission of a job (docs/slurm_plugins.md). It reads one line of the file that `gangline
-- mirror` writes, asks nobody, and lets every job through: whatever goes wrong here, and whatever the file says.
--
-- You have a job_submit.lua already: append this file to it without the last two functions, and call
-- gangline_job_submit(job_desc, part_list) in yours.

-- The file, in a folder that only its owner may write.
local MIRROR = "/run/gangline-mirror/nodes"
-- Words to whoever submits a job that names nodes that are out, or needs more nodes than are ready.
local TELL = true
-- true: jobs that can run elsewhere leave out nodes with a fault. This stays with the job for ever, also when the node is well
-- again, and needs `gangline mirror --slurm`.
local EXCLUDE = false
-- The feature that `gangline mirror --slurm --feature NAME` was given: jobs prefer nodes with it, where that refuses none.
local PREFER = ""

-- As of executors/mirror_format.py; what is larger is not ours.
local LINE_BYTES_MAX, FILE_BYTES_MAX, FIXED_BYTES = 344358, 8732989, 182
local TAIL_BYTES, VALID_SECONDS_MAX = 22, 60
-- Of a list that a user gave, and of nodes that are out: what is longer is not told of.
local NAMES_MAX, TEXT_CHARACTERS_MAX = 1024, 200
local HEAD = "^gangline%-mirror 1 check=(%x%x%x%x%x%x%x%x) line=(%d%d%d%d%d%d%d) file=(%d%d%d%d%d%d%d%d) computed=%d+ "
	.. "valid_until=(%d%d%d%d%d%d%d%d%d%d) nodes=(%d%d%d%d%d) record=%d%d%d degraded=([01]) slurm=([01]) "
	.. "exclude_safe=(%d%d%d%d%d) prefer_safe=(%d%d%d%d%d) "

-- The last line that was read, by its checksum: it is taken apart once.
local known = { checksum = "" }

-- *text* as one number, its first byte the highest, modulo a prime: exact in the numbers that Lua has.
local function checksum_of(text)
	local sum = 0
	for first = 1, #text, 64 do
		local bytes = { text:byte(first, first + 63) }
		for at = 1, #bytes do
			sum = (sum * 256 + bytes[at]) % 2654435761
		end
	end
	return string.format("%08x", sum)
end

local function others_write(mode)
	return math.floor(mode / 16) % 2 == 1 or math.floor(mode / 2) % 2 == 1
end

-- Owner and mode count where Lua can see them: with the package lua-posix. Else the folder keeps others out.
local function may_be_read(path)
	local found, posix = pcall(require, "posix.sys.stat")
	if not found then
		return true
	end
	local status, folder = posix.lstat(path), posix.stat(path:match("^(.*)/") or ".")
	return status ~= nil and folder ~= nil and posix.S_ISREG(status.st_mode) ~= 0
		and not others_write(status.st_mode) and not others_write(folder.st_mode)
		and (status.st_uid == 0 or status.st_uid == folder.st_uid)
end

-- What the mirror says of now; nil: it is missing, stale, torn or none of ours.
local function read_mirror(now)
	if not may_be_read(MIRROR) then
		return nil
	end
	local file = io.open(MIRROR, "rb")
	if file == nil then
		return nil
	end
	local line, size, tail
	local checksum, line_bytes, file_bytes, valid_until, nodes, degraded, slurm_nodes, exclude_safe, prefer_safe
	local head = file:read(FIXED_BYTES)
	if head ~= nil then
		checksum, line_bytes, file_bytes, valid_until, nodes, degraded, slurm_nodes, exclude_safe, prefer_safe =
			head:match(HEAD)
	end
	if checksum ~= nil and checksum ~= known.checksum and tonumber(line_bytes) <= LINE_BYTES_MAX then
		local rest = file:read(math.max(tonumber(line_bytes) + 1 - #head, 0))
		line = head .. (rest or "")
	end
	if checksum ~= nil then
		size = file:seek("end")
		tail = size >= TAIL_BYTES and file:seek("end", -TAIL_BYTES) and file:read(TAIL_BYTES)
	end
	file:close()
	if checksum == nil or size ~= tonumber(file_bytes) or size > FILE_BYTES_MAX
		or not tail or tail:match("^end (%x+) %x+\n$") ~= checksum then
		return nil
	end
	if checksum ~= known.checksum then
		if line == nil or line:sub(tonumber(line_bytes) + 1) ~= "\n" then
			return nil
		end
		local summed = line:match("^%S+ 1 check=%x+ (line=[^\n]*)\n$")
		if summed == nil or checksum_of(summed) ~= checksum then
			return nil
		end
		known = { checksum = checksum, valid_until = tonumber(valid_until), nodes = tonumber(nodes),
			degraded = degraded == "1", slurm = slurm_nodes == "1", exclude_safe = tonumber(exclude_safe),
			prefer_safe = tonumber(prefer_safe), count = {}, list = {} }
		for name, count, list in summed:gmatch(" (%w+)=(%d+):(%S*)") do
			known.count[name], known.list[name] = tonumber(count), list
		end
	end
	if now >= known.valid_until or known.valid_until - now > VALID_SECONDS_MAX then
		return nil
	end
	return known
end

-- A number of 32 bits; nil for NO_VAL and INFINITE.
local function number(value)
	return type(value) == "number" and value < 4294967293 and value or nil
end

local function is_set(value)
	return value ~= nil and value ~= ""
end

-- The most nodes that the job could use at once; nil where that cannot be told, or it says itself where it is to run.
local function nodes_max(job, partitions)
	for _, name in ipairs({ "req_nodes", "exc_nodes", "prefer", "reservation", "clusters", "tres_per_job", "tres_per_socket",
		"tres_per_task", "extra" }) do
		if is_set(job[name]) then
			return nil
		end
	end
	for _, name in ipairs({ "req_switch", "het_job_offset", "pack_job_offset" }) do
		if number(job[name]) ~= nil then
			return nil
		end
	end
	for _, name in ipairs({ "ntasks_per_gpu", "ntasks_per_tres" }) do -- of 16 bits
		if type(job[name]) == "number" and job[name] < 65533 then
			return nil
		end
	end
	if job.contiguous ~= nil and job.contiguous ~= 0 then
		return nil
	end
	local most = number(job.max_nodes) or math.max(number(job.min_nodes) or 1, number(job.num_tasks) or 1)
	for _, partition in pairs(partitions) do
		most = math.max(most, number(partition.min_nodes) or 0)
	end
	return most
end

-- The names of a host list, as a set; no more than there may be.
local function names_of(list)
	local names, count = {}, 0
	for item in list:gsub("%b[]", function(ranges) return (ranges:gsub(",", ";")) end):gmatch("[^,]+") do
		local prefix, ranges, suffix = item:match("^(.-)%[(.*)%](.*)$")
		if prefix == nil then
			names[item] = true
		else
			for range in ranges:gmatch("[^;]+") do
				local low, high = range:match("^(%d+)%-(%d+)$")
				low, high = low or range, high or range
				for at = tonumber(low), tonumber(high) do
					count = count + 1
					if count > NAMES_MAX then
						return names
					end
					names[string.format("%s%0" .. #low .. "d%s", prefix, at, suffix)] = true
				end
			end
		end
	end
	return names
end

local function cut(text)
	return #text <= TEXT_CHARACTERS_MAX and text or text:sub(1, TEXT_CHARACTERS_MAX) .. "..."
end

local function tell(...)
	slurm.log_user("%s", "gangline: " .. string.format(...))
end

local function tell_of_nodes(job, mirror)
	local some_out = mirror.count.out > 0 and mirror.count.out <= NAMES_MAX and mirror.list.out ~= "*"
	if is_set(job.req_nodes) and some_out then
		local out, found = names_of(mirror.list.out), {}
		for name in pairs(names_of(job.req_nodes)) do
			if out[name] then
				found[#found + 1] = name
			end
		end
		table.sort(found)
		if #found > 0 then
			tell("this job names nodes that are not fit for jobs now: %s", cut(table.concat(found, ",")))
		end
	end
	local wanted, ready = number(job.min_nodes) or 0, mirror.nodes - mirror.count.out
	if mirror.slurm and wanted > ready and wanted <= mirror.nodes then
		tell("this job needs %d nodes, and %d of %d are fit for jobs now", wanted, ready, mirror.nodes)
	end
end

local function act(job, partitions)
	local mirror = read_mirror(os.time())
	if mirror == nil or mirror.degraded then
		return
	end
	if TELL then
		tell_of_nodes(job, mirror)
	end
	if not mirror.slurm or not (EXCLUDE or PREFER ~= "") then
		return
	end
	local most = nodes_max(job, partitions)
	if most == nil then
		return
	end
	local list = mirror.list.exclude
	if EXCLUDE and mirror.count.exclude > 0 and list ~= "*" and most <= mirror.exclude_safe then
		job.exc_nodes = list
		if TELL then
			tell("this job leaves out nodes with a fault: %s", cut(list))
		end
	elseif PREFER ~= "" and mirror.list.prefer == PREFER and most <= mirror.prefer_safe and not is_set(job.features) then
		job.prefer = PREFER
	end
end

function gangline_job_submit(job_desc, part_list)
	local done, message = pcall(act, job_desc, part_list)
	if not done then
		pcall(slurm.log_info, "%s", "gangline: " .. tostring(message))
	end
end

function slurm_job_submit(job_desc, part_list, submit_uid)
	gangline_job_submit(job_desc, part_list)
	return slurm.SUCCESS
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
	return slurm.SUCCESS
end
