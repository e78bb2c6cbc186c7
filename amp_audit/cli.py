"""The command line: read options, call one function of ``reading`` or ``auditing``, print, exit code. No logic."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TextIO

from amp_audit import __version__

if TYPE_CHECKING:
    from amp_audit.reading import Scope
    from amp_audit.report import Report
    from amp_audit.settings import Configuration
    from amp_audit.supervisor import Recording
    from amp_audit.target import Target

USAGE = """\
usage: amp-audit [OPTIONS] TRAIN.py [ARGS...]       read it, run it, one report
       amp-audit [OPTIONS] -m MODULE [ARGS...]
       amp-audit [OPTIONS] -- LAUNCHER ...          torchrun, accelerate, ...
       amp-audit check [OPTIONS] [PATHS...]         read only; needs no torch
       amp-audit run [OPTIONS] TRAIN.py [ARGS...]   run only, leave a trace
       amp-audit report [OPTIONS] TRACE...          show traces, ranks merged
       amp-audit explain RULE                       what a rule is about
       amp-audit rules                              all rules, one line each
       amp-audit doctor [--json]                    what this machine can do
"""

ABOUT = """\
Finds where a PyTorch training program loses precision, wastes it, or misuses
AMP: by reading the program and by watching it run. Options of amp-audit stand
before TRAIN.py; all after it belongs to the program.

Exit codes: 0 nothing at or above --fail-on, 1 findings, 2 amp-audit could not
do its job, 3 the audited program failed or was killed.
"""

_COLLECTED_AFTER = 100_000
"""How many more objects there must be for Python to look for dead ones: what is loaded stays, and looking through it
again and again is a fifteenth of loading all that a check needs (measured: 175 and 163 ms)."""

UNABLE = 2
INTERRUPTED = 130


class UsageError(Exception):
    """A command line that cannot be used; the message is one line."""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, and takes no abbreviations: they change their meaning with each new option."""

    def __init__(self, command: str) -> None:
        prog = f"amp-audit {command}".strip()
        super().__init__(prog, usage=argparse.SUPPRESS, add_help=False, allow_abbrev=False)
        self.add_argument("-h", "--help", action="store_true", help="show this and exit")

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; nothing is raised for a user's mistake."""
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character of the source must not end the report.
        getattr(stream, "reconfigure", lambda **_: None)(errors="backslashreplace")
    words = list(sys.argv[1:] if argv is None else argv)
    if argv is None:
        gc.set_threshold(_COLLECTED_AFTER)
    try:
        code = _dispatch(words)
        sys.stdout.flush()
        if argv is None:
            gc.freeze()  # the process ends: nobody needs to go through what is left for dead cycles
        return code
    except BrokenPipeError:
        # Nobody reads on; the interpreter's own flush at exit must not complain about it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return UNABLE
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        if not isinstance(error, (*_expected(), _Told)):
            raise
        if isinstance(error, UsageError):
            _tell_machines(words, str(error))
        print(f"amp-audit: {error}", file=sys.stderr)
        return UNABLE


class _Told(Exception):
    """An error of which the report has told already; the message is still for the person who waits."""


def _tell_machines(words: Sequence[str], problem: str) -> None:
    """A document for a program that reads the standard output, of a command line that could not even be read."""
    from amp_audit import reading
    from amp_audit.report import DOCUMENTS, render

    asked = [after for word, after in pairwise(words) if word == "--format"]
    asked += [word.partition("=")[2] for word in words if word.startswith("--format=")]
    if not asked or asked[-1] not in DOCUMENTS:
        return

    command = words[0] if words[0] in COMMANDS else "audit"
    render(reading.unable(command, " ".join(words), problem), asked[-1], sys.stdout)


def _open_closed_streams() -> None:
    """Python has None for a standard stream that is closed (``>&-``): what is written there goes nowhere."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115


def _expected() -> tuple[type[Exception], ...]:
    """Errors that are the user's to mend and whose message says how."""
    from amp_audit.rulebook import RuleError
    from amp_audit.runtime.launch import LaunchError
    from amp_audit.settings import SettingsError
    from amp_audit.target import TargetError
    from amp_audit.trace.reader import TraceError

    return (UsageError, RuleError, LaunchError, SettingsError, TargetError, TraceError)


def _dispatch(words: list[str]) -> int:
    if not words:
        print(USAGE, end="", file=sys.stderr)
        return UNABLE
    if words[0] in ("-V", "--version"):
        print(f"amp-audit {__version__}")
        return 0
    command = COMMANDS.get(words[0])
    return command(words[1:]) if command is not None else _audit(words)


def _audit(words: list[str]) -> int:
    parser = _Parser("")
    _add_recording(parser)
    _add_reporting(parser, of_a_run=True)
    options, program = _split(parser, words)
    if options.help:
        return _help(parser, USAGE, ABOUT)
    from amp_audit import auditing

    def job() -> tuple[Report | None, int]:
        outcome = auditing.audit(_target(program), _configured(options), _recording(options))
        return outcome.report, outcome.code

    return _Output(options).of("audit", program[1], job)


def _run(words: list[str]) -> int:
    parser = _Parser("run")
    _add_recording(parser)
    options, program = _split(parser, words)
    if options.help:
        return _help(parser, "usage: amp-audit run [OPTIONS] TRAIN.py [ARGS...]\n", "Run only; leave a trace.\n")
    from amp_audit import auditing

    outcome = auditing.record(_target(program), _recording(options))
    print(f"amp-audit: {outcome.message}", file=sys.stderr)
    return outcome.code


def _check(words: list[str]) -> int:
    parser = _Parser("check")
    parser.add_argument("paths", nargs="*", metavar="PATHS", type=Path, help="files, folders, - for stdin (default: .)")
    _add_fixing(parser)
    _add_scope(parser)
    _add_reporting(parser)
    options = parser.parse_args(words)
    if options.help:
        return _help(parser, "usage: amp-audit check [OPTIONS] [PATHS...]\n", "Read only; needs no torch.\n")
    _refuse_contradictions(parser, options)
    if options.stdin_filename is not None and Path("-") not in options.paths:
        parser.error("--stdin-filename names the standard input: give - as a path")
    from amp_audit import reading

    scope = reading.Scope(
        stdin_name=options.stdin_filename,
        force_exclude=options.force_exclude,
        diff=options.diff,
        write_baseline=options.write_baseline,
        cache=not options.no_cache,
        beside=True,
    )

    def job() -> tuple[Report | None, int]:
        if options.fix or options.unsafe_fixes or options.preview:
            return _mended(options, scope)
        report = reading.check(options.paths or [Path()], _configured(options), scope)
        return report, report.exit_code

    return _Output(options).of("check", options.paths, job)


def _add_fixing(parser: _Parser) -> None:
    group = parser.add_argument_group("fixing")
    group.add_argument("--fix", action="store_true", help="mend what can be mended without changing what is computed")
    group.add_argument("--unsafe-fixes", action="store_true", help="mend also what changes what is computed")
    group.add_argument("--preview", action="store_true", help="show the changes as a diff and write nothing")


def _refuse_contradictions(parser: _Parser, options: argparse.Namespace) -> None:
    fixes = options.fix or options.unsafe_fixes or options.preview
    if fixes and Path("-") in options.paths:
        parser.error("the standard input cannot be fixed: its findings carry their edits in --format json")
    if fixes and options.write_baseline is not None:
        parser.error("--write-baseline records what is found; fix first, then record")
    if options.preview and options.format != "terminal":
        parser.error("--preview shows a diff; --format shows what was found")


def _mended(options: argparse.Namespace, scope: Scope) -> tuple[Report | None, int]:
    """What remains after the fixes asked for; no report where a diff is shown in its place."""
    from amp_audit import mending

    done = mending.mend(options.paths or [Path()], _configured(options), scope, unsafe=options.unsafe_fixes)
    if not options.preview:
        mending.write(done)
        return done.report, done.report.exit_code
    sys.stdout.flush()
    sys.stdout.buffer.write(mending.diff(done))
    return None, done.exit_code_before


def _report(words: list[str]) -> int:
    parser = _Parser("report")
    parser.add_argument("traces", nargs="*", metavar="TRACE", type=Path, help="folders that runs left behind")
    _add_reporting(parser, of_a_run=True)
    options = parser.parse_args(words)
    if options.help:
        return _help(parser, "usage: amp-audit report [OPTIONS] TRACE...\n", "Show traces, ranks merged.\n")
    if not options.traces:
        parser.error("no trace given")
    from amp_audit import auditing

    def job() -> tuple[Report, int]:
        report = auditing.report(options.traces, _configured(options))
        return report, report.exit_code

    return _Output(options).of("report", options.traces, job)


def _explain(words: list[str]) -> int:
    parser = _Parser("explain")
    parser.add_argument("rule", nargs="?", metavar="RULE", help="an id or a name: AMP202, clip-before-unscale")
    parser.add_argument("--rules", action="append", default=[], type=Path, metavar="DIR", help="more rules")
    options = parser.parse_args(words)
    if options.help:
        return _help(parser, "usage: amp-audit explain RULE\n", "What a rule is about, and how to mend it.\n")
    if options.rule is None:
        parser.error("no rule given")
    from amp_audit import reading
    from amp_audit.report import rules

    rules.explain(reading.rule(options.rule, _configured(options)), sys.stdout)
    return 0


def _rules(words: list[str]) -> int:
    parser = _Parser("rules")
    parser.add_argument("--rules", action="append", default=[], type=Path, metavar="DIR", help="more rules")
    options = parser.parse_args(words)
    if options.help:
        return _help(parser, "usage: amp-audit rules\n", "All rules, one line each.\n")
    from amp_audit import reading
    from amp_audit.report import rules

    rules.table(reading.load_rules(_configured(options)), sys.stdout)
    return 0


def _doctor(words: list[str]) -> int:
    parser = _Parser("doctor")
    parser.add_argument("--json", action="store_true", help="as JSON")
    options = parser.parse_args(words)
    if options.help:
        return _help(parser, "usage: amp-audit doctor [--json]\n", "What this machine and this torch can do.\n")
    from amp_audit import auditing

    for line in auditing.doctor(options.json):
        print(line)
    return 0


COMMANDS: Mapping[str, Callable[[list[str]], int]] = {
    "check": _check,
    "run": _run,
    "report": _report,
    "explain": _explain,
    "rules": _rules,
    "doctor": _doctor,
}
"""Words with a meaning of their own, in first position only: a script named ``check`` is ``./check``."""


def _help(parser: _Parser, usage: str, about: str) -> int:
    options = parser.format_help().strip()
    print(f"{usage}\n{about}\n{options}")
    return 0


def _add_recording(parser: _Parser) -> None:
    group = parser.add_argument_group("running")
    group.add_argument("-m", dest="module", metavar="MODULE", help="run a module, as python -m does")
    group.add_argument("--steps", type=_count_or_all, default=20, metavar="N|all", help="optimizer steps to run (20)")
    group.add_argument(
        "--sample",
        type=_sample,
        default="default",
        metavar="default|all|N",
        help="steps whose ops are recorded: every one up to 50, then fewer; all; every Nth",
    )
    group.add_argument(
        "--deep",
        type=_deep,
        default="default",
        metavar="default|all|none|N",
        help="recorded steps whose ops run again in float32: the 2nd and every 10th; all; none; every Nth",
    )
    group.add_argument(
        "--compile",
        choices=("eager", "observe"),
        default="eager",
        help="on recorded steps run what torch.compile was given as written (eager), or watch it compiled (observe)",
    )
    group.add_argument("--continue", dest="go_on", action="store_true", help="let the program run on after --steps")
    group.add_argument("--trace", type=Path, metavar="DIR", help="where the trace goes (.amp-audit/<time>-<pid>)")

    group.add_argument(
        "--emulate",
        type=_device,
        metavar="cuda[:sm80]|xpu|mps",
        help="run a program written for that device on the CPU, in its precision (CUDA: as on a chip of that kind)",
    )
    group.add_argument(
        "--dry-run", action="store_true", help="emulate one step of a model of any size, values left out"
    )


def _add_scope(parser: _Parser) -> None:
    group = parser.add_argument_group("what to report on")
    group.add_argument("--diff", metavar="REF", help="findings that lines changed since REF concern (needs git)")
    group.add_argument("--baseline", type=Path, metavar="FILE", help="not the findings that FILE knows")
    group.add_argument("--write-baseline", type=Path, metavar="FILE", help="make all findings known, in FILE")
    group.add_argument("--stdin-filename", metavar="NAME", help="the file that - stands for")
    group.add_argument("--force-exclude", action="store_true", help="exclude files given by name too")
    group.add_argument("--no-cache", action="store_true", help="read everything anew")


def _add_reporting(parser: _Parser, *, of_a_run: bool = False) -> None:
    from amp_audit.report import FORMATS

    group = parser.add_argument_group("reporting")
    levels = ("error", "warning", "info")
    group.add_argument("--format", choices=FORMATS, default="terminal", help="how to report (terminal)")
    group.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the report to FILE")
    group.add_argument("--fail-on", choices=levels, help="exit 1 from this severity on (audit: error, check: warning)")
    group.add_argument("--min-confidence", choices=("high", "medium", "low"), help="leave out the less sure (medium)")
    group.add_argument("--select", action="append", metavar="RULES", help="only these: ids, names, AMP2 for a group")
    group.add_argument("--ignore", action="append", metavar="RULES", help="not these")
    group.add_argument("--rules", action="append", default=[], type=Path, metavar="DIR", help="more rules")
    group.add_argument("-q", "--quiet", action="store_true", help="one line a finding")
    group.add_argument("-v", "--verbose", action="store_true", help="notes and all numbers too")
    group.add_argument("--no-color", action="store_true", help="no colour, whatever the terminal")
    if of_a_run:
        meant = "the torch that the program will be run with: say which autocast lists differ from those of this run"
        group.add_argument("--policy-torch", type=_release, metavar="X.Y", help=meant)


def _release(word: str) -> str:
    from amp_audit import policy

    try:
        policy.lists("cuda", word)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return word


def _count_or_all(word: str) -> int | None:
    if word == "all":
        return None
    if not word.isdigit() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"{word!r} is neither a number from 1 nor all")
    return int(word)


def _deep(word: str) -> str:
    if word not in ("default", "all", "none") and not (word.isdigit() and int(word) >= 1):
        raise argparse.ArgumentTypeError(f"{word!r} is neither default, all, none nor a number from 1")
    return word


def _sample(word: str) -> str:
    if word not in ("default", "all") and not (word.isdigit() and int(word) >= 1):
        raise argparse.ArgumentTypeError(f"{word!r} is neither default, all nor a number from 1")
    return word


def _device(word: str) -> str:
    from amp_audit import chips

    try:
        chips.parse(word)
    except chips.EmulationError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return word


def _split(parser: _Parser, words: list[str]) -> tuple[argparse.Namespace, tuple[str, list[str]]]:
    """Our options, and the program with its own: (``script`` | ``module`` | ``launcher``, words)."""
    valued = {name for action in parser._actions if action.nargs != 0 for name in action.option_strings}
    place = 0
    while place < len(words) and words[place].startswith("-") and words[place] not in ("--", "-"):
        word = words[place]
        place += 2 if word in valued else 1
        if word == "-m":
            break
    own, rest = words[:place], words[place:]
    options = parser.parse_args(own)
    if options.module is not None:
        return options, ("module", [options.module, *rest])
    if rest and rest[0] == "--":
        return options, ("launcher", rest[1:])
    if not rest and not options.help:
        parser.error("no program given")
    return options, ("script", rest)


def _target(program: tuple[str, list[str]]) -> Target:
    from amp_audit import target

    kind, words = program
    if kind == "script" and words[0] in COMMANDS and not Path(words[0]).exists():
        raise UsageError(f"options of `{words[0]}` stand after it: amp-audit {words[0]} [OPTIONS]")
    make = {"script": target.script, "module": target.module, "launcher": target.launcher}[kind]
    return make(words)


def _recording(options: argparse.Namespace) -> Recording:
    from amp_audit.supervisor import Recording

    device = options.emulate or ("cuda" if options.dry_run else None)
    return Recording(
        options.steps,
        options.sample,
        options.deep,
        options.go_on,
        options.trace,
        device,
        options.dry_run,
        options.compile,
    )


def _configured(options: argparse.Namespace) -> Configuration:
    from amp_audit import settings

    flags = settings.Flags(
        select=_words(getattr(options, "select", None)),
        ignore=_words(getattr(options, "ignore", None)),
        fail_on=getattr(options, "fail_on", None),
        min_confidence=getattr(options, "min_confidence", None),
        rules=tuple(options.rules),
        baseline=getattr(options, "baseline", None),
    )
    return settings.Configuration(settings.read(Path.cwd()), flags)


def _words(values: list[str] | None) -> tuple[str, ...]:
    return tuple(word.strip() for value in values or () for word in value.split(",") if word.strip())


class _Output:
    """Where the report goes. The file is opened before anything runs: a long audit must not end in a bad path."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._stream: TextIO = sys.stdout
        if options.output is not None:
            try:
                self._stream = open(options.output, "w", encoding="utf-8")  # noqa: SIM115
            except OSError as error:
                raise UsageError(f"cannot write the report to {options.output}: {error.strerror}") from None

    def of(self, command: str, target: Sequence[object], job: Callable[[], tuple[Report | None, int]]) -> int:
        """Do ``job`` and print its report. A program that reads it gets one also of a job that cannot be done."""
        try:
            report, code = job()
        except _expected() as error:
            from amp_audit import reading
            from amp_audit.report import DOCUMENTS

            if self._options.format not in DOCUMENTS:
                raise
            self._show(reading.unable(command, " ".join(map(str, target)), str(error)), UNABLE)
            raise _Told(str(error)) from None
        return self._show(report, code)

    def _show(self, report: Report | None, code: int) -> int:
        """Print, and hand the exit code through."""
        from amp_audit.report import render

        options = self._options
        if report is not None:
            torch = getattr(options, "policy_torch", None)
            if torch is not None:
                from amp_audit.report import emulated

                report = emulated.for_torch(report, torch)
            color = not options.no_color and options.output is None
            render(report, options.format, self._stream, verbose=options.verbose, quiet=options.quiet, color=color)
        if self._stream is not sys.stdout:
            self._stream.close()
        return code
