"""The query sandbox: accessible files, allowed statements and functions, and error messages."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
from duckdb import DuckDBPyConnection as Connection

from ..sql import quoted
from ..store.parquet import views
from ..store.store_folder import OPS_FILE
from .messages import SQL_BYTES_MAX, QueryRefused

# Functions that a query may call; all others are refused. Scalar functions, aggregates, window
# functions and DuckDB's own macros of 1.5 and 2.0 that have no side effects and read only their
# arguments. Excluded on purpose: files (read_*, glob, parquet_*), settings and secrets
# (current_setting, getvariable, getenv, duckdb_secrets), SQL in strings (query, query_table,
# json_execute_serialized_sql), and actions (write_log, enable_*, checkpoint, nextval, setseed,
# sleep_ms). Expensive functions are not excluded: limits and the kill handle them.

_SCALAR_FUNCTION_NAMES = """
    !__postfix !~~ !~~* % & && * ** + - ->> -> / // <-> << <=> <@ >> @ @> ^ ^@ | || ~ ~~ ~~* ~~~ !
    abs acos acosh add age ago alias any_value apply approx_count_distinct approx_quantile approx_top_k
    arbitrary arg_max arg_max_null arg_max_nulls_last arg_min arg_min_null arg_min_nulls_last argmax
    argmin array_agg array_aggr array_aggregate array_append array_apply array_cat array_concat
    array_contains array_cosine_distance array_cosine_similarity array_cross_product array_distance
    array_distinct array_dot_product array_extract array_filter array_grade_up array_has array_has_all
    array_has_any array_indexof array_inner_product array_intersect array_length
    array_negative_dot_product array_negative_inner_product array_pop_back array_pop_front
    array_position array_prepend array_push_back array_push_front array_reduce array_resize
    array_reverse array_reverse_sort array_select array_slice array_sort array_to_json array_to_string
    array_to_string_comma_default array_transform array_unique array_value array_where array_zip ascii
    asin asinh atan atan2 atanh avg bar base64 bin bit_and bit_count bit_length bit_or bit_position
    bit_xor bitstring bitstring_agg bool_and bool_or can_cast_implicitly cardinality cbrt ceil ceiling
    century char_length character_length chr coalesce col_description combine concat concat_ws
    constant_or_null contains corr cos cosh cot count count_if count_star countif covar_pop covar_samp
    cume_dist current_catalog current_database current_date current_localtime current_localtimestamp
    current_schema current_time current_timestamp current_user damerau_levenshtein date_add date_diff
    date_part date_sub date_trunc datediff datepart datesub datetrunc day dayname dayofmonth dayofweek
    dayofyear days_in_month decade decode degrees dense_rank divide editdist3 element_at encode
    ends_with entropy enum_code enum_first enum_last enum_range enum_range_boundary epoch epoch_ms
    epoch_ns epoch_us equi_width_bins era error even exp factorial favg fdiv fill filter first
    first_value flatten floor fmod format formatreadabledecimalsize formatreadablesize format_bytes
    format_type from_base64 from_binary from_hex from_json from_json_strict fsum gamma gcd
    gen_random_uuid generate_series generate_subscripts geomean geometric_mean get_bit
    get_current_time get_current_timestamp get_type grade_up greatest greatest_common_divisor
    group_concat grouping grouping_id hamming hash hex histogram histogram_exact hour ilike_escape
    instr is_histogram_other_bin isfinite isinf isnan isodow isoyear jaccard jaro_similarity
    jaro_winkler_similarity json json_array json_array_length json_contains json_exists json_extract
    json_extract_path json_extract_path_text json_extract_string json_group_array json_group_object
    json_group_structure json_keys json_merge_patch json_object json_pretty json_quote json_structure
    json_transform json_transform_strict json_type json_valid json_value julian kahan_sum kurtosis
    kurtosis_pop lag last last_day last_value lcase lcm lead least least_common_multiple left
    left_grapheme len length length_grapheme levenshtein lgamma like_escape list list_aggr
    list_aggregate list_any_value list_append list_apply list_approx_count_distinct list_avg
    list_bit_and list_bit_or list_bit_xor list_bool_and list_bool_or list_cat list_concat
    list_contains list_cosine_distance list_cosine_similarity list_count list_distance list_distinct
    list_dot_product list_element list_entropy list_extract list_filter list_first list_grade_up
    list_has list_has_all list_has_any list_histogram list_indexof list_inner_product list_intersect
    list_kurtosis list_kurtosis_pop list_last list_mad list_max list_median list_min list_mode
    list_negative_dot_product list_negative_inner_product list_pack list_position list_prepend
    list_product list_reduce list_resize list_reverse list_reverse_sort list_select list_sem
    list_skewness list_slice list_sort list_stddev_pop list_stddev_samp list_string_agg list_sum
    list_transform list_unique list_value list_var_pop list_var_samp list_where list_zip listagg ln
    log log10 log2 lower lpad ltrim mad make_date make_time make_timestamp make_timestamp_ms
    make_timestamp_ns make_timestamptz map map_concat map_contains map_contains_entry
    map_contains_value map_entries map_extract map_extract_value map_from_entries map_keys map_values
    max max_by md5 md5_number md5_number_lower md5_number_upper mean median microsecond millennium
    millisecond min min_by minute mismatches mod mode month monthname multiply nanosecond nextafter
    nfc_normalize normalized_interval not_ilike_escape not_like_escape now nth_value ntile nullif
    obj_description octet_length ord parse_dirname parse_dirpath parse_filename parse_formatted_bytes
    parse_path percent_rank pg_get_viewdef pg_size_pretty pg_typeof pi position pow power prefix
    printf product quantile quantile_cont quantile_disc quarter radians random range rank rank_dense
    reduce regexp_escape regexp_extract regexp_extract_all regexp_full_match regexp_matches
    regexp_replace regexp_split_to_array regexp_split_to_table regr_avgx regr_avgy regr_count
    regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy remap_struct repeat replace
    reservoir_quantile reverse right right_grapheme round round_even roundbankers row row_number
    row_to_json rpad rtrim second sem session_user set_bit sha1 sha256 sign signbit sin sinh skewness
    split split_part sqrt starts_with stddev stddev_pop stddev_samp str_split str_split_regex strftime
    string_agg string_split string_split_regex string_to_array strip_accents strlen strpos strptime
    struct_concat struct_contains struct_extract struct_extract_at struct_has struct_indexof
    struct_insert struct_keys struct_pack struct_position struct_update struct_values substr substring
    substring_grapheme subtract suffix sum sum_no_overflow sumkahan switch tan tanh time_bucket
    timezone timezone_hour timezone_minute to_base to_base64 to_binary to_centuries to_days to_decades
    to_hex to_hours to_json to_microseconds to_millennia to_milliseconds to_minutes to_months
    to_quarters to_seconds to_timestamp to_weeks to_years today transaction_timestamp translate trim
    trunc try_strptime typeof ucase unbin unhex unicode union_extract union_tag union_value unnest
    unpivot_list upper url_decode url_encode user uuid uuid_extract_timestamp uuid_extract_version
    uuidv4 uuidv7 var_pop var_samp variance version wavg week weekday weekofyear weighted_avg xor year
    yearweek
"""

#: Additional functions of DuckDB 2.0; its parser treats operators as functions, unlike that of 1.5.
_SCALAR_FUNCTION_NAMES_SINCE_2 = """
    != < <= = > >= __between __cast assert_true binom if json_deep_merge json_insert json_normalize
    json_remove json_replace json_set json_strip_nulls lttb try
"""
_OPERATORS_SINCE_2 = ("is distinct from", "is not distinct from")

_TABLE_FUNCTION_NAMES = """
    duckdb_columns duckdb_functions duckdb_keywords duckdb_schemas duckdb_tables duckdb_types
    generate_series json_each json_tree pg_timezone_names pragma_table_info range repeat
    repeat_row summary unnest
"""

#: DuckDB's views of tables, columns and types. Its other views show settings, files of this
#: machine, logs, or the SQL of views, which contains file names.
_CATALOG_VIEWS = """
    character_sets check_constraints columns constraint_column_usage constraint_table_usage
    key_column_usage referential_constraints schemata table_constraints tables duckdb_columns
    duckdb_constraints duckdb_indexes duckdb_schemas duckdb_tables duckdb_types pg_am pg_attrdef
    pg_attribute pg_class pg_collation pg_constraint pg_database pg_depend pg_description pg_enum
    pg_index pg_indexes pg_namespace pg_proc pg_sequence pg_sequences pg_tables pg_tablespace
    pg_type
"""
CATALOG_VIEWS = frozenset(_CATALOG_VIEWS.split())

#: Functions allowed in expressions.
FUNCTIONS = frozenset(
    [*_SCALAR_FUNCTION_NAMES.split(), *_SCALAR_FUNCTION_NAMES_SINCE_2.split(), *_OPERATORS_SINCE_2]
)
#: Functions allowed in FROM: they generate rows from their arguments, or list tables.
TABLE_FUNCTIONS = frozenset(_TABLE_FUNCTION_NAMES.split())

#: Schemas of Gangline's macros, all of which are allowed.
MACRO_SCHEMAS = frozenset({"ops", "history"})

#: Limit of the lines of a DuckDB message, and of the characters of the SQL line shown with it.
MESSAGE_LINES_MAX, SHOWN_CHARACTERS_MAX = 4, 100
#: Command that lists everything to query; all query interfaces accept it.
HINT = "`gangline sql '\\d'` lists tables and views"

#: Names of earlier commits (docs/stability.md) -> names. In FROM they are views of `ops`.
FORMER_NAMES = {
    "words": "message", "reason_words": "reason_message", "state_words": "state_message", "says": "message",
    "heard": "last_seen", "told_by_boot": "boot_reports", "still_so": "is_active", "tells": "description",
    "said_at": "declared_in", "told": "reported (ops.gangs) or predicted (calibration of ops.models)",
}  # fmt: skip

#: Schemas of the history, created empty: binding a year of files takes longer than most queries.
SCHEMAS = ("past",)
#: Folders with Parquet files.
FOLDERS = ("segments", "rollups")
#: Message about the allowed statements.
ALLOWED_STATEMENTS = (
    "only one SELECT, FROM, WITH, VALUES, EXPLAIN, DESCRIBE, SHOW or SUMMARIZE is taken"
)
#: Without values DuckDB would create an enum type first.
PIVOT = "a PIVOT needs its values named: PIVOT t ON column IN ('a', 'b')"
#: DuckDB cuts cited text after a number of bytes, possibly within a character.
UNREADABLE = "the statement is invalid, and DuckDB's error message cannot be decoded: look for unusual characters"
#: The schema of the SQL standard's views.
INFORMATION = "information_schema"
#: DuckDB's share of the process's memory limit.
DUCKDB_MEMORY_SHARE = 0.6
_BLANK = r"(?:\s|;|--[^\n]*(?:\n|$)|/\*.*?\*/)"
_FIRST_WORD = re.compile(rf"{_BLANK}*(\w{{1,40}})", re.DOTALL)
_EXPLAIN = re.compile(
    rf"{_BLANK}*EXPLAIN\b(?:{_BLANK}*ANALYZE\b)?(?:{_BLANK}*\([\w\s,]*\))?",
    re.DOTALL | re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class ParsedError:
    """The parts of DuckDB's message. `position`: in bytes, None if unknown."""

    text: str
    position: int | None
    missing: str


def parse_error(error: Exception) -> ParsedError:
    """Return the parts of an error of DuckDB, or of Arrow that cites it (mostly JSON)."""
    text = str(error)
    try:
        # For an internal error DuckDB appends a stack trace, which is omitted.
        details, _ = json.JSONDecoder().raw_decode(text, text.index("{"))
        position = details.get("position")
        missing = details["name"] if details.get("error_subtype") == "MISSING_ENTRY" else ""
        message = f"{details['exception_type']} error: {details['exception_message']}"
        return ParsedError(message, int(position) if position else None, missing)
    except (ValueError, KeyError, TypeError):
        return ParsedError(text, None, "")


def explain_error(error: duckdb.Error, sql: str, names: Callable[[], list[str]]) -> str:
    """Return DuckDB's message, shortened, with its position in *sql* and a hint from *names*."""
    import duckdb  # 0.1 s, which a client of a server need not spend

    parsed = parse_error(error)
    text = first_lines(parsed.text)
    if "memory exhausted at or near" in text or "Max expression depth" in text:
        text = "the statement is nested too deeply"
    elif isinstance(error, duckdb.PermissionException):
        text = f"files and settings are not accessible, only the snapshot is: {text}"
    elif "read-only" in text.lower():
        text = f"writes are not allowed, this reads a snapshot: {text}"
    elif former := former_name(text):
        name = f"{'ops.' if parsed.missing else ''}{FORMER_NAMES[former]}"
        text = f"{text.splitlines()[0]}\nhint: {former} is now {name}; {HINT}"
    elif parsed.missing:
        text = with_suggestion(text, parsed.missing, names())
    elif isinstance(error, duckdb.BinderException):
        text = f"{text}\nhint: DESCRIBE <table> names its columns; {HINT}"
    return located(sql, parsed.position, text)


def former_name(message: str) -> str:
    """Return the name in the first line of DuckDB's *message* that FORMER_NAMES has; "" if none."""
    line = message.splitlines()[0] if message else ""
    if not re.search("not found|does not exist|does not have|Could not find", line):
        return ""
    words = re.findall(r'"(\w+)"|with name (\w+)', line.lower())
    return next((name for pair in words for name in pair if name in FORMER_NAMES), "")


def located(sql: str, position: int | None, message: str) -> str:
    """Return *message* with line and column of *position* (bytes), and that line with a mark."""
    if position is None or position < 0:
        return message
    before = sql.encode(errors="replace")[:position].decode(errors="replace")
    line_index = before.count("\n")
    column = len(before) - (before.rfind("\n") + 1)
    line = visible(sql.split("\n")[line_index])
    begin = max(0, column - SHOWN_CHARACTERS_MAX // 2)
    shown = line[begin : begin + SHOWN_CHARACTERS_MAX]
    mark = " " * (column - begin) + "^"
    head, newline, rest = message.partition("\n")
    return f"line {line_index + 1}, column {column + 1}: {head}\n  {shown}\n  {mark}{newline}{rest}"


def visible(text: str) -> str:
    """Return *text* with spaces instead of non-printable characters."""
    return "".join(character if character.isprintable() else " " for character in text)


def with_suggestion(text: str, missing: str, names: list[str]) -> str:
    """Return *text* with a suggestion from *names* instead of DuckDB's, which uses all names."""
    lines = [line for line in text.splitlines() if not line.startswith("Did you mean")]
    full_names = {name.partition("(")[0].rpartition(".")[2]: name for name in reversed(names)}
    matches = difflib.get_close_matches(
        missing.rpartition(".")[2].lower(), full_names, n=1, cutoff=0.7
    )
    hint = ""
    if matches:
        hint = _suggestion(full_names[matches[0]], missing.rpartition(".")[2].lower() == matches[0])
    return "\n".join([*lines, f"hint: {hint}{HINT}"])


def _suggestion(name: str, exactly: bool) -> str:
    """Return the suggestion *name*; *exactly*: the name exists in another schema, or as a macro."""
    return (
        f"it is asked as FROM {name}; " if exactly else f"did you mean {name.partition('(')[0]}? "
    )


def without_folder(message: str, folder: Path) -> str:
    """Return *message* with paths relative to *folder*."""
    for path in (folder.absolute(), folder):
        message = message.replace(f"{path}/", "")
    return message


def first_lines(text: str) -> str:
    """Return the first MESSAGE_LINES_MAX lines, printable and shortened."""
    lines = [visible(line) for line in text.splitlines() if line.strip()]
    return "\n".join(line[:400] for line in lines[:MESSAGE_LINES_MAX])


# History: views over the Parquet files, in schemas of the query's own empty database, which are in
# its search path: `FROM past.gpu_1s`.


def make_views(connection: Connection, folder: Path) -> str:
    """Create the views of the history in *folder*; return a message if one failed, else ""."""
    missing = ""
    # A cursor searches `memory` first, as the connection did before `set_search_path`.
    cursor = connection.cursor()
    for statement in _view_statements(folder):
        try:
            cursor.execute(statement)
        except duckdb.Error as error:
            reason = without_folder(_first_line(error), folder)
            missing = missing or f"a part of the history cannot be read: {reason}"
    return missing


def _view_statements(folder: Path) -> list[str]:
    try:
        return views.statements(folder)
    except (OSError, ValueError):
        return []


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:300]


def open_snapshot(file: Path, *, memory_bytes_max: int = 2 << 30, threads: int = 2) -> Connection:
    """Open a file of the data folder; the connection can reach only this file and the history.

    The file is read-only; the connection's own database, `memory`, contains empty schemas for the
    views of the history. Raises FileNotFoundError or duckdb.Error.
    """
    if not file.exists():
        raise FileNotFoundError(file)
    connection = duckdb.connect(
        ":memory:",
        config={
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "python_enable_replacements": False,
            "allow_persistent_secrets": False,
            "memory_limit": f"{int(memory_bytes_max * DUCKDB_MEMORY_SHARE)}B",
            "threads": threads,
            "temp_directory": "",
            "max_temp_directory_size": "0B",
        },
    )
    for schema in SCHEMAS:
        connection.execute(f"CREATE SCHEMA {schema}")
    connection.execute(f"ATTACH {quoted(str(file))} AS {file.stem} (READ_ONLY)")
    _restrict_access(connection, file.parent.absolute())
    set_search_path(connection, file.stem)
    connection.execute("SET lock_configuration = true")
    return connection


def _restrict_access(connection: Connection, folder: Path) -> None:
    reachable = ", ".join(quoted(str(folder / name)) for name in FOLDERS)
    connection.execute(f"SET allowed_directories = [{reachable}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET errors_as_json = true")


def set_search_path(connection: Connection, database: str) -> None:
    """Make names resolve to the snapshot first, then to the history."""
    path = ",".join([f"{database}.main", *(f"memory.{schema}" for schema in SCHEMAS)])
    connection.execute(f"SET search_path = '{path}'")


def snapshot_path(folder: Path) -> Path:
    """Return the path of the operators' file."""
    return folder / OPS_FILE


def check(connection: Connection, sql: str) -> None:
    """Accept a single statement that reads, and calls only allowed functions.

    Raises QueryRefused, or duckdb.Error for invalid SQL.
    """
    size = len(sql.encode(errors="replace"))
    if size > SQL_BYTES_MAX:
        raise QueryRefused(f"the statement has {size} bytes, at most {SQL_BYTES_MAX} are allowed")
    if "\0" in sql:
        raise QueryRefused(located(sql, sql.index("\0"), "a NUL byte is not SQL"))
    statements = _statements(connection, sql)
    if len(statements) > 1 and statements[0].type.name == "CREATE" and not statements[0].query:
        raise QueryRefused(f"{ALLOWED_STATEMENTS}; {PIVOT}")
    if len(statements) != 1:
        raise QueryRefused(f"{ALLOWED_STATEMENTS}, not {len(statements)} statements")
    kind = statements[0].type.name
    if kind == "EXPLAIN":
        sql = _explained_statement(connection, sql)
    elif kind != "SELECT":
        word = _first_word(sql)
        instead = PIVOT if word == "PIVOT" else "this reads a snapshot"
        raise QueryRefused(f"{ALLOWED_STATEMENTS}, not {word}: {instead}")
    tree = _tree(connection, sql)
    _check_tables(connection, sql, tree)
    for function, where, position in _function_calls(tree):
        if function.get("schema") in MACRO_SCHEMAS and (
            position or _is_macro(connection, function)
        ):
            continue
        _check_function(sql, function, where, position)


def _is_macro(connection: Connection, function: dict[str, Any]) -> bool:
    """Return whether `ops.NAME(...)` is our macro: `ops` may be a column, NAME any function."""
    macros = connection.execute(
        "SELECT 1 FROM duckdb_functions() WHERE schema_name = ? AND function_name = lower(?) "
        "AND function_type = 'macro'",
        [function["schema"], str(function["function_name"])],
    )
    return macros.fetchone() is not None


def _statements(connection: Connection, sql: str) -> list[Any]:
    try:
        return list(connection.extract_statements(sql))
    except UnicodeError:
        raise QueryRefused(UNREADABLE) from None


def _explained_statement(connection: Connection, sql: str) -> str:
    """Return the statement after EXPLAIN, at its original position."""
    match = _EXPLAIN.match(sql)
    if not match:
        raise QueryRefused(f"{ALLOWED_STATEMENTS}; write EXPLAIN as the first word")
    inner = " " * match.end() + sql[match.end() :]
    statements = _statements(connection, inner)
    if len(statements) != 1 or statements[0].type.name != "SELECT":
        raise QueryRefused(
            f"{ALLOWED_STATEMENTS}, and EXPLAIN only of those: statements that write cannot be "
            "explained either"
        )
    return inner


def _tree(connection: Connection, sql: str) -> Any:
    rows = connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [sql]).fetchall()
    try:
        tree = json.loads(rows[0][0])
    except RecursionError:
        raise QueryRefused("the statement is nested too deeply") from None
    if not tree["error"]:
        return tree
    if tree.get("error_type") == "not implemented":
        raise QueryRefused(f"{ALLOWED_STATEMENTS}, not {_first_word(sql)}: this reads a snapshot")
    raise QueryRefused(
        first_lines(str(tree.get("error_message", "the statement cannot be parsed")))
    )


def _function_calls(tree: Any) -> Iterator[tuple[dict[str, Any], frozenset[str], str]]:
    """Yield (function, functions allowed at its position, the position) of every call."""
    remaining = [tree]
    in_from: set[int] = set()
    while remaining:
        node = remaining.pop()
        if isinstance(node, list):
            remaining += node
        elif isinstance(node, dict):
            remaining += node.values()
            if node.get("type") == "TABLE_FUNCTION" and isinstance(node.get("function"), dict):
                in_from.add(id(node["function"]))
            if node.get("function_name"):
                if id(node) in in_from:
                    yield node, TABLE_FUNCTIONS, " in FROM"
                else:
                    yield node, FUNCTIONS, ""


def _check_tables(connection: Connection, sql: str, tree: Any) -> None:
    """Refuse DuckDB's own views except CATALOG_VIEWS. Raises QueryRefused."""
    named = dict(_tables(tree))
    if not named:
        return
    internal_views = connection.execute(
        "SELECT schema_name, view_name FROM duckdb_views() WHERE internal AND list_contains(?, view_name)",
        [[name for _, name in named]],
    ).fetchall()
    for schema, name in internal_views:
        # Views of information_schema are checked only in that schema: other tables may have the
        # same name.
        key = (schema if schema == INFORMATION else "", name)
        if key in named and name not in CATALOG_VIEWS:
            message = f"{name} is not allowed: it shows settings or files of the machine; {HINT}"
            raise QueryRefused(located(sql, _place(sql, named[key]), message))


def _tables(tree: Any) -> Iterator[tuple[tuple[str, str], Any]]:
    """Yield each named table: (INFORMATION or "" for any other schema, name), and its position."""
    remaining = [tree]
    while remaining:
        node = remaining.pop()
        if isinstance(node, list):
            remaining += node
        elif isinstance(node, dict):
            remaining += node.values()
            if isinstance(name := node.get("table_name"), str) and name:
                schema = str(node.get("schema_name", "")).lower()
                key = (schema if schema == INFORMATION else "", name.lower())
                yield key, node.get("query_location")


def _place(sql: str, at: Any) -> int | None:
    return at if isinstance(at, int) and at < len(sql) * 4 else None


def _check_function(
    sql: str, function: dict[str, Any], allowed: frozenset[str], place: str
) -> None:
    name = str(function["function_name"]).lower()
    if name in allowed:
        return
    message = f"the function {visible(name)[:60]}{place} is not allowed: only functions that compute, and those of ops and history, are"
    raise QueryRefused(located(sql, _place(sql, function.get("query_location")), message))


def _first_word(sql: str) -> str:
    match = _FIRST_WORD.match(sql)
    return match[1].upper() if match else "this"
