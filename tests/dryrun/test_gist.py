import pytest

from hyperparallel.dryrun import gist

NOISE = """\
[ERROR] ME(97:1,MainProcess):2026-01-01 [mindspore/run_check/_check_version.py:350] CheckFailed: No module named 'te'
[CRITICAL] ME(97:1,MainProcess):2026-01-01 [a.py:351] MindSpore relies on whl package "te" in Ascend AI software package
"""
COMPILER = """\
[ERROR] ANALYZER(10190,7f69,python):2026-01-01 [mindspore/ccsrc/evaluator.cc:764] Run] Primitive: <MatMul> infer failed

----------------------------------------------------
- The Traceback of Net Construct Code:
----------------------------------------------------
# 0 In file /home/me/net.py:99, 15~28
        wrong_place()
Traceback (most recent call last):
  File "/home/me/train.py", line 23, in <module>
    net.compile(x)
  File "/usr/lib/python3/site-packages/mindspore/nn/cell.py", line 1782, in compile
    _cell_graph_executor.compile(self, *compile_args, phase=self.phase,
ValueError: For 'MatMul' the dimensions
must be equal.
More details please refer to syntax support at https://www.mindspore.cn

----------------------------------------------------
- C++ Call Stack: (For framework developers)
----------------------------------------------------
mindspore/ops/infer/matmul.cc:78 InferShape2D

----------------------------------------------------
- The Traceback of Net Construct Code:
----------------------------------------------------
# 0 In file /home/me/net.py:20, 15~28
        return self.inner(x).sum()
               ^~~~~~~~~~~~~
# 1 In file /home/me/net.py:10, 8~53
        return self.mm(x, self.w)
        ^~~~~~~~~~~~~~~~~~~~~~~~~
# 2 In file /usr/lib/python3/site-packages/mindspore/ops/functional.py:2204, 11~31
    return add_op(input, other)
 (See file '/home/me/rank_0/om/analyze_fail.ir' for more details.)
"""


def test_compiler_message_with_the_place_in_the_users_construct():
    assert gist(NOISE + COMPILER + NOISE) == (
        "ValueError: For 'MatMul' the dimensions must be equal.\n  at /home/me/net.py:10: return self.mm(x, self.w)"
    )


def test_python_error_with_the_users_innermost_frame():
    frames = (
        '  File "/home/me/train.py", line 5, in <module>\n    f()\n  File "/x/site-packages/numpy/f.py", line 9, in f\n'
    )
    text = NOISE + "Traceback (most recent call last):\n" + frames + "numpy.linalg.LinAlgError: singular\n"
    assert gist(text) == "numpy.linalg.LinAlgError: singular\n  at /home/me/train.py:5"


def test_last_of_chained_exceptions_counts():
    first = 'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\nKeyError: 3\n'
    second = 'Traceback (most recent call last):\n  File "b.py", line 2, in <module>\nRuntimeError: no key\n'
    between = "\nDuring handling of the above exception, another exception occurred:\n\n"
    assert gist(first + between + second) == "RuntimeError: no key\n  at b.py:2"


def test_exception_without_a_message():
    assert gist('Traceback (most recent call last):\n  File "a.py", line 1, in <module>\nAssertionError\n') == (
        "AssertionError\n  at a.py:1"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        (NOISE, ""),
        (NOISE + "loading\nSegmentation fault\n", "Segmentation fault"),
        ("[ERROR] DEVICE(1,2,python):2026 [mindspore/a.cc:31] Alloc] Out of memory.\nbye\n", "Out of memory."),
    ],
)
def test_output_without_an_exception(text, expected):
    assert gist(text) == expected


def test_long_message_is_cut():
    said = gist("ValueError: " + "x" * 5000)
    assert len(said) == 400
    assert said.endswith(" ...")
