"""The `gangline` command: a table of commands, each imported only when it runs."""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

#: Exit codes that scripts may rely on.
OK, FAILED, USAGE, NO_ANSWER, NOT_FOUND = 0, 1, 2, 3, 4

#: `format` of the objects that `--json` prints. Its guarantees: docs/stability.md.
JSON_FORMAT = 1

#: Errors of writing to a closed pipe, or to a full or broken disk.
UNWRITABLE = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EIO)

#: Commands whose module is not `.EXTRA.commands.COMMAND`.
_MODULES = {
    "simulate": ".simulator.command",
    "executor": ".executors.command",
    "mirror": ".executors.mirror",
    "why": ".executors.slurm.why",
}
#: Groups of `gangline --help`: title, example, and command -> its extra, and its summary.
GROUPS: tuple[tuple[str, str, dict[str, tuple[str, str]]], ...] = (
    (
        "look",
        "gangline hosts --watch",
        {
            "hosts": ("aggregator", "all hosts, with score, state and reason"),
            "explain": ("aggregator", "why a host has its score, or an answer its options"),
            "host": ("aggregator", "the score of a host; --supply: its present supply"),
            "job": ("aggregator", "what a job does, its pace, and who slows it"),
            "why": ("executor", "why a Slurm job waits, and what would help"),
            "record": ("aggregator", "a host's last minutes at full rate, as a file"),
            "sql": ("aggregator", "query the store in SQL, read-only"),
        },
    ),
    (
        "decide",
        "gangline plan --nodes 16 --for 24h",
        {
            "plan": ("aggregator", "where a gang runs best, and what that costs"),
            "recover": ("aggregator", "how a gang can continue after members failed"),
            "resize": ("aggregator", "should a running gang grow, shrink or stay"),
            "reservations": ("aggregator", "nodes that schedulers have reserved"),
        },
    ),
    (
        "act",
        "gangline executor slurm run --shadow",
        {
            "advise": ("aggregator", "what to do about hosts, and its cost; accept, reject"),
            "executor": (
                "executor",
                "carry out advisories in Slurm, Kubernetes, HTCondor, Ray, Flux",
            ),
            "mirror": ("executor", "the health of all nodes in a file for scheduler plugins"),
            "permit": ("aggregator", "let hosts enforce their own findings"),
        },
    ),
    (
        "host",
        "gangline check --for prolog",
        {
            "agent": ("agent", "run the daemon of this host; `agent status`: its state"),
            "check": ("agent", "is this host fit for a job? one line, an exit code"),
            "doctor": ("agent", "what the agent can and cannot read, and how to fix it"),
            "xid": ("agent", "what an XID code or log line means, and what to do"),
            "diag": ("agent", "import the result of a `dcgmi diag -j`"),
            "release": ("agent", "close GPUs before a reset or a driver unload"),
            "resume": ("agent", "reopen released GPUs"),
            "gang": ("agent", "in a Slurm job: a step that outlives lost nodes"),
        },
    ),
    (
        "run the service",
        "gangline init lab --host gpu-[001-004]",
        {
            "aggregator": ("aggregator", "run the service"),
            "init": ("aggregator", "write a configuration: trial, lab, Slurm, Kubernetes"),
            "admin": ("aggregator", "backup, verify, certificates, tokens, declarations, ..."),
        },
    ),
    (
        "try",
        "gangline run --simulated 64",
        {
            "run": ("aggregator", "aggregator, agent and simulated hosts on this machine"),
            "simulate": ("simulate", "simulated hosts for a running aggregator"),
        },
    ),
)
#: Command -> (module with `main(arguments) -> exit code`, or module:function; its extra; summary).
COMMANDS: dict[str, tuple[str, str, str]] = {
    name: (_MODULES.get(name, f".{extra}.commands.{name}"), extra, summary)
    for _, _, commands in GROUPS
    for name, (extra, summary) in commands.items()
}
#: Former command -> its present spelling. It continues to work, with a note on stderr.
FORMER = {
    "watch": ("hosts", "--watch"),
    "declared": ("admin", "declared"),
    "evaluate": ("admin", "evaluate"),
}

#: Parts that deb and rpm packages install; each has its own commands (docs/install.md).
PACKAGES = {
    "gangline.agent": "gangline-agent",
    "gangline.aggregator": "gangline-aggregator",
    "gangline.executors": "gangline-aggregator",
    "gangline.simulator": "gangline-aggregator",
}


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit code.

    Characters that the terminal cannot encode are escaped. Failed output is reported, and returns
    FAILED; a closed pipe (`gangline hosts | head`) returns FAILED without a message. An error of a
    file that no command reports itself is a message too.
    """
    # `gangline hosts >&-`: Python then has no stream, and the next opened file would become standard output.
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            return _run(sys.argv[1:] if arguments is None else arguments)
        finally:
            if not sys.stdout.closed:
                sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        if (
            error.filename is not None
        ):  # a file that a command names, and that this user may not read
            print(f"gangline: {error.filename!s}: {error.strerror}", file=sys.stderr)
        elif error.errno in UNWRITABLE:
            _give_up(error)
        else:
            raise
        return FAILED


def _give_up(error: OSError) -> None:
    """Report failed output, and keep the interpreter from writing it again at exit."""
    from contextlib import suppress  # 2 ms, which every prolog would pay

    with suppress(OSError):
        if error.errno != errno.EPIPE:
            print(f"gangline: the output cannot be written: {error.strerror}", file=sys.stderr)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_help())
        return OK if arguments else USAGE
    if arguments[0] == "--version":
        from importlib.metadata import version

        print(f"gangline {version('gangline')}")
        return OK
    name, rest = arguments[0], arguments[1:]
    if name in FORMER:
        present = " ".join(FORMER[name])
        print(f"gangline {name} is now `gangline {present}`", file=sys.stderr)
        name, rest = FORMER[name][0], [*FORMER[name][1:], *rest]
    if name not in COMMANDS:
        import difflib  # 3 ms, which every prolog would pay

        near = difflib.get_close_matches(name, COMMANDS, 3)
        hint = f"did you mean {' or '.join(near)}?" if near else "expected one of these"
        text = f"gangline: no command {name!r}; {hint}"
        print(text if near else f"{text}\n\n{_help()}", file=sys.stderr)
        return USAGE
    return _dispatch(name, rest)


def _dispatch(name: str, rest: list[str]) -> int:
    module, extra, _ = COMMANDS[name]
    try:  # some commands import their dependencies only when they run
        module, _, function = module.partition(":")
        return int(getattr(importlib.import_module(module, __package__), function or "main")(rest))
    except ModuleNotFoundError as error:
        if not error.name or error.name.partition(".")[0] == __package__:
            if error.name not in PACKAGES:
                raise
            print(
                f"gangline {name} needs the package {PACKAGES[error.name]}, which is not installed; "
                "install it in the version that `gangline --version` shows",
                file=sys.stderr,
            )
            return FAILED
        print(
            f"gangline {name} needs {error.name}, which is not installed; install it with: "
            f'pip install "SOURCE[{extra}]", where SOURCE is the checkout or the wheel that '
            "Gangline was installed from",
            file=sys.stderr,
        )
        return FAILED


def json_object(fields: Mapping[str, object], indent: int | None = None) -> str:
    """Return *fields* as the JSON object that `--json` prints, with its `format`."""
    import json  # imported here, so that prologs do not pay for it

    return json.dumps({"format": JSON_FORMAT, **fields}, indent=indent)


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = ["usage: gangline COMMAND [--help] ..."]
    for title, example, commands in GROUPS:
        lines += ["", f"{title}, for example: {example}"]
        lines += [f"  {name:<{width}}  {what}" for name, (_, what) in commands.items()]
    codes = "exit codes: 0 done, 1 failed, 2 wrong usage, 3 no aggregator, 4 not found"
    return "\n".join((*lines, "", codes))


if __name__ == "__main__":
    sys.exit(main())
