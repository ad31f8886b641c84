"""The unit tests of worker/backend/cuda on a real GPU, alone and under compute-sanitizer."""

import concurrent.futures
import json
import re

from parts import Failed, Skip

_TEST_S = 120
# Of one program under one tool. Its tests are small, but every access is looked at.
_SANITIZER_S = 90
_SANITIZER_PROGRAMS = 4  # At a time.
_TOOLS = ("memcheck", "racecheck")
# What runs in it are cuDNN's kernels, which are not ours to mend.
_NOT_SANITIZED = ("cudnn_attention_test_gpu",)


def test_programs(context):
    return json.loads((context.pack / "manifest.json").read_text())["tests"]


def _loaded_tests(context, program):
    """Names of the tests of a program, which needs no GPU for that."""
    done = context.run("unit", context.program(program), "--gtest_list_tests", timeout_s=30,
                       variables=context.program_variables)
    if done.status != 0:
        raise Failed(f"{program} does not start: {done.last_lines()}")
    return [line for line in done.output.splitlines() if line.startswith("  ")]


def unit(context):
    programs = test_programs(context)
    if context.gpu is None:
        count = sum(len(_loaded_tests(context, program)) for program in programs)
        raise Skip(f"no GPU: {context.no_gpu}; {count} tests in {len(programs)} programs load")
    data = {"programs": {}}
    wrong = []
    for program in programs:
        report = context.out / f"{program}.json"
        done = context.run("unit", context.program(program), f"--gtest_output=json:{report}",
                           timeout_s=_TEST_S, variables=context.program_variables)
        row = {"seconds": round(done.seconds, 2), "status": done.status}
        if report.exists():
            row.update(read_report(json.loads(report.read_text())))
            report.unlink()
        data["programs"][program] = row
        if done.timed_out:
            wrong.append(f"{program} was not done after {_TEST_S} s")
        elif done.status != 0:
            wrong.append(f"{program}: {', '.join(row.get('failed', [])) or done.last_lines()}")
    if wrong:
        raise Failed("; ".join(wrong), data)
    passed = sum(row["tests"] for row in data["programs"].values())
    return f"{passed} tests in {len(programs)} programs", data


def read_report(report):
    """Counts and names of GoogleTest's JSON."""
    cases = [(f"{suite['name']}.{case['name']}", case)
             for suite in report.get("testsuites", []) for case in suite.get("testsuite", [])]
    run = [(name, case) for name, case in cases if case.get("result") == "COMPLETED"]
    return {"tests": len(run), "skipped": len(cases) - len(run),
            "failed": [name for name, case in run if case.get("failures")]}


def findings(text):
    """How many errors compute-sanitizer counted, or None if it did not come to its end."""
    counts = re.findall(r"ERROR SUMMARY: (\d+) error", text)
    counts += re.findall(r"RACECHECK SUMMARY: (\d+) hazard", text)
    return sum(int(count) for count in counts) if counts else None


def sanitizer(context):
    context.need_gpu()
    tool = context.tools["compute_sanitizer"]
    if tool is None:
        raise Skip("there is no compute-sanitizer")
    data = {"runs": []}

    def one(job):
        name, program = job
        if context.left() < 5:
            return {"tool": name, "program": program, "findings": None, "why": "no time was left"}
        done = context.run(
            "sanitizer", tool["path"], "--tool", name, "--report-api-errors", "no",
            "--error-exitcode", "99", context.program(program), timeout_s=_SANITIZER_S,
            variables=context.program_variables)
        row = {"tool": name, "program": program, "findings": findings(done.output),
               "seconds": round(done.seconds, 1), "status": done.status}
        if done.timed_out:
            row.update(findings=None, why=f"not done after {done.seconds:.0f} s")
        elif row["findings"] is None:
            row["why"] = done.last_lines()
        return row

    jobs = [(name, program) for name in _TOOLS for program in test_programs(context)
            if program not in _NOT_SANITIZED]
    with concurrent.futures.ThreadPoolExecutor(_SANITIZER_PROGRAMS) as pool:
        data["runs"] = list(pool.map(one, jobs))
    found = [row for row in data["runs"] if row["findings"]]
    if found:
        raise Failed("; ".join(f"{row['tool']} of {row['program']}: {row['findings']} findings"
                               for row in found), data)
    complete = [row for row in data["runs"] if row["findings"] == 0]
    broken = [row for row in complete if row["status"] != 0]
    if broken:
        raise Failed("; ".join(f"{row['program']} fails under {row['tool']}" for row in broken),
                     data)
    if not complete:
        raise Failed(f"no program came to its end: {data['runs'][0]['why']}", data)
    unfinished = [f"{row['program']} under {row['tool']} ({row['why']})"
                  for row in data["runs"] if row["findings"] is None]
    reason = f"{len(complete)} of {len(jobs)} runs without a finding"
    if unfinished:
        reason += f"; not finished: {', '.join(unfinished)}"
    return reason, data
