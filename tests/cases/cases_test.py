"""cases.txt names every case, and tests that there are."""

import ast
import pathlib
import re
import runpy
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CASES = [*(f"{kind}{number}" for kind, last in (("A", 7), ("B", 5), ("C", 8), ("D", 6))
           for number in range(1, last + 1)), "E",
         *(f"F{number}" for number in range(1, 25) if number not in (14, 18))]
read_table = runpy.run_path(str(ROOT / "tests/cases/run"))["read_table"]


class CasesTest(unittest.TestCase):
    def test_every_case_has_tests(self):
        table = read_table()
        self.assertEqual(list(table), CASES)
        for case, programs in table.items():
            self.assertTrue(all(programs.values()) and programs, case)

    def test_every_test_is_there(self):
        tests = {}
        for path in ROOT.glob("tests/**/CMakeLists.txt"):
            for program, sources in re.findall(r"causeway_test\((\w+)\s+SOURCES([^)]*?)(?:DEPS|\))", path.read_text()):
                found = [re.findall(r"^TEST(?:_[FP])?\((\w+),\s+(\w+)\)", (path.parent / source).read_text(), re.M)
                         for source in sources.split() if (path.parent / source).exists()]
                tests[program] = {".".join(pair) for pairs in found for pair in pairs}
        for case, of_case in read_table().items():
            for program, named in of_case.items():
                if program.endswith(".py"):
                    there = {f"{one.name}.{method.name}"
                             for one in ast.parse((ROOT / "tests" / program).read_text()).body
                             if isinstance(one, ast.ClassDef) for method in one.body if hasattr(method, "name")}
                else:
                    self.assertIn(program, tests, case)
                    there = tests[program]
                for test in named:
                    self.assertIn(test, there, case)


if __name__ == "__main__":
    unittest.main()
