import pytest

from hyperparallel.dryrun.ir_text import parse_ir, read_ir, references
from hyperparallel.errors import DryRunError

HEAD = "# IR entry: @5_main\n# Total subgraphs: 1\n"
WHOLE = """\
subgraph attr:
training: 1
subgraph instance: 5_main : 0x55f8d94b4830
# In file /home/me/net.py:15~20, 4~22/    def construct(self, x, token):/
subgraph @5_main(%para1_x, %para2_net.weight) {
  %0(h) = PrimFunc_MatMul(%para1_x, %para2_net.weight, Bool(0), Bool(1)) {instance name: mm} cnode_attrs: {checkpoint: Bool(1)} cnode_primal_attrs: {unique_id: "2638", dest_rank: I64(7)}
      : (<Tensor[Float32], (8, 8)>, <Ref[Tensor[Float32]], (8, 8)>) -> (<Tensor[Float32], (8, 8)>)
      # Fullname with scope: (Default/stage-Stage/MatMul-op0)
      # In file /home/me/net.py:16, 20~37/        a = self.mm(x -> "}{")/
  %1(s) = Send(%0) {instance name: send} primitive_attrs: {shape: (8, 8), dest_rank: I64(1), group: "a, b}", sr_tag: I64(-3), no_eliminate: Bool(1), dtype: Tensor(F32)} cnode_primal_attrs: {dest_rank: I64(7)}
      : (<Tensor[Float32], (8, 8)>) -> (<Tensor[Float32], (8, 8)>)
      # Fullname with scope: (Default/Send-op0)
  Return(%1) cnode_attrs: {checkpoint: Bool(1)}
      : (<Tensor[Float32], (8, 8)>)
}
"""  # noqa: E501


def body(*lines):
    """The nodes of a graph with these lines."""
    text = HEAD + "subgraph @5_main() {\n" + "\n".join(f"  {line}" for line in lines) + "\n}\n"
    return parse_ir(text).graphs["5_main"].nodes


def test_whole_graph():
    ir = parse_ir(HEAD + WHOLE)
    assert ir.entry == "5_main"
    assert ir.graphs["5_main"].params == ("%para1_x", "%para2_net.weight")
    matmul, send, end = ir.graphs["5_main"].nodes
    assert (matmul.name, matmul.op, matmul.args) == (
        "%0",
        "MatMul",
        ("%para1_x", "%para2_net.weight", "Bool(0)", "Bool(1)"),
    )
    assert (matmul.scope, matmul.type) == ("Default/stage-Stage/MatMul-op0", "(<Tensor[Float32], (8, 8)>)")
    assert matmul.attrs == {"checkpoint": 1, "unique_id": "2638", "dest_rank": 7}
    assert send.args == ("%0",)
    assert (end.op, end.args) == ("Return", ("%1",))


def test_attributes_of_the_primitive_win():
    send = parse_ir(HEAD + WHOLE).graphs["5_main"].nodes[1]
    assert send.attrs == {
        "shape": "(8, 8)",
        "dest_rank": 1,
        "group": "a, b}",
        "sr_tag": -3,
        "no_eliminate": 1,
        "dtype": "Tensor(F32)",
    }


def test_action_of_a_gate_is_kept():
    (gate,) = body('%0(g) = Depend(%para1_x, %para2_t) {instance name: g} primitive_attrs: {action: "4F2"}')
    assert gate.attrs == {"action": "4F2"}


@pytest.mark.parametrize(
    ("line", "calls", "closure"),
    [
        ("%3(c) = call @42_loop(%0, %1)", ("42_loop",), None),
        ("%3(c) = @42_loop(%0, %1)", ("42_loop",), None),
        ("%3(c) = %2[@Partial(@43_f)](%0, %1)", ("43_f",), "%2"),
        ("%3(c) = %2[@FuncUnion(@44_a, @45_b)](%0, %1)", ("44_a", "45_b"), "%2"),
    ],
)
def test_calls(line, calls, closure):
    (node,) = body(line)
    assert (node.op, node.calls, node.closure, node.args) == ("call", calls, closure, ("%0", "%1"))


def test_nested_inputs_stay_whole():
    (node,) = body('%1(y) = Op((%0, (I64(2), %para1_x)), "a, (b", Tensor(shape=[], dtype=Int64, value=3))')
    assert node.args == ("(%0, (I64(2), %para1_x))", '"a, (b"', "Tensor(shape=[], dtype=Int64, value=3)")
    assert references(node.args[0]) == ["%0", "%para1_x"]


def test_constant_over_several_lines_is_joined():
    add, then = body(
        "%1(y) = Add(%0, Tensor(shape=[2, 2], dtype=Float32, value=",
        "[[ 1.0, 2.0]",
        " [ 3.0, 4.0]])) {instance name: add} primitive_attrs: {k: I64(5)}",
        "%2(z) = ReLU(%1)",
    )
    assert (add.op, add.args[0], add.attrs) == ("Add", "%0", {"k": 5})
    assert then.op == "ReLU"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no line '# IR entry: @...'"),
        ("# IR entry: @5_main\n", "no graph @5_main"),
        (HEAD + "subgraph @5_main() {\n  %0(a) = Add(%1, (%2\n}\n", "graph:4: brackets do not match"),
    ],
)
def test_other_text_is_refused(text, said):
    with pytest.raises(DryRunError) as caught:
        parse_ir(text)
    assert said in str(caught.value)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(DryRunError, match="none.ir: No such file"):
        read_ir(tmp_path / "none.ir")
