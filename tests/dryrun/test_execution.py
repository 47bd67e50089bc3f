import pytest

from hyperparallel.dryrun import check_execution, read_execution
from hyperparallel.errors import DryRunError

KERNELS = "index,node_name,logic_id,stream_id,node_info,event_id,group\n"
COMM = (
    "index,group,comm_rank,primitive,src_rank,dest_rank,root_rank,input_shape,input_type,output_shape,output_type,"
    "input_size,output_size\n"
)


def write(folder, rank, kernels):
    """Write what mindspore writes: kernels are (op, stream) with an event, or (op, stream, peer, shape) or a group."""
    lines, comm = [KERNELS], [COMM]
    for index, (op, stream, *more) in enumerate(kernels, 1):
        event = more[0] if op.startswith("Stream") else ""
        group = "" if op.startswith(("Stream", "MatMul")) else "world"
        lines.append(f'"{index}","Default/{op}-op{index}","1","{stream}","n{{[0]: x, [1]: y}}","{event}","{group}"\n')
        if group:
            peer, shape = (*more, "(8, 8)")[:2] if op in ("Send", "Receive") else ("", "(8, 8)")
            source, to = (peer if op == "Receive" else ""), (peer if op == "Send" else "")
            kind = f'"{shape}","Float32"'
            comm.append(f'"{index}","world","0 1","{op}","{source}","{to}","",{kind},{kind},"256","256"\n')
    where = folder / f"rank_{rank}" / "execute_order"
    where.mkdir(parents=True)
    (where / "execute_order.csv").write_text("".join(lines))
    (where / "comm_execute_order.csv").write_text("".join(comm))
    return where.parent


def check(folder, *ranks):
    return check_execution([write(folder, rank, kernels) for rank, kernels in enumerate(ranks)])


def test_kernels_are_read(tmp_path):
    folder = write(tmp_path, 0, [("MatMul", 0), ("StreamSend", 0, 3), ("Send", 2, 1, "(4, 8)"), ("AllReduce", 2)])
    matmul, record, sent, reduced = read_execution(folder)
    assert (matmul.op, matmul.stream, matmul.group, matmul.event) == ("MatMul", 0, None, None)
    assert (record.op, record.event) == ("StreamSend", 3)
    assert (sent.op, sent.peer, sent.ranks, sent.shape) == ("Send", 1, (0, 1), "(4, 8)Float32")
    assert (reduced.op, reduced.peer, reduced.stream) == ("AllReduce", None, 2)


def test_exchange_in_step_passes(tmp_path):
    zero = [("Send", 2, 1), ("StreamSend", 2, 0), ("StreamRecv", 0, 0), ("MatMul", 0), ("Receive", 2, 1)]
    one = [("Receive", 2, 0), ("StreamSend", 2, 0), ("StreamRecv", 0, 0), ("MatMul", 0), ("Send", 2, 0)]
    assert check(tmp_path, zero, one) == []


def test_both_sending_first_on_one_stream_deadlock(tmp_path):
    problems = check(tmp_path, [("Send", 2, 1), ("Receive", 2, 1)], [("Send", 2, 0), ("Receive", 2, 0)])
    assert [problem.split(" is stuck")[0] for problem in problems] == ["rank 0, stream 2", "rank 1, stream 2"]


def test_both_sending_first_on_two_streams_pass(tmp_path):
    assert check(tmp_path, [("Send", 2, 1), ("Receive", 3, 1)], [("Send", 2, 0), ("Receive", 3, 0)]) == []


def test_wait_across_streams_can_deadlock(tmp_path):
    zero = [("Send", 2, 1), ("StreamSend", 2, 0), ("StreamRecv", 3, 0), ("Receive", 3, 1)]
    one = [("Send", 2, 0), ("StreamSend", 2, 0), ("StreamRecv", 3, 0), ("Receive", 3, 0)]
    problems = check(tmp_path, zero, one)
    assert len(problems) == 4
    assert "rank 0, stream 3 is stuck" in problems[1]


def test_wait_is_for_the_latest_record_before_it(tmp_path):
    zero = [("StreamSend", 0, 0), ("StreamRecv", 2, 0), ("Send", 2, 1), ("StreamSend", 2, 0)]
    assert check(tmp_path, zero, [("Receive", 2, 0)]) == []


def test_missing_counterpart_is_reported(tmp_path):
    problems = check(tmp_path, [("Send", 2, 1)], [("MatMul", 0)])
    assert problems[0].startswith("no counterpart: rank 0 ")
    assert "Send" in problems[0]
    assert len(problems) == 2


def test_different_shapes_are_reported(tmp_path):
    (problem,) = check(tmp_path, [("Send", 2, 1, "(4, 8)")], [("Receive", 2, 0, "(8, 4)")])
    assert problem.startswith("shapes differ: ")
    assert "(8, 4)" in problem


def test_collective_needs_all(tmp_path):
    assert check(tmp_path / "good", [("AllReduce", 2)], [("MatMul", 0), ("AllReduce", 4)]) == []
    problems = check(tmp_path / "bad", [("AllReduce", 2)], [("AllGather", 2)])
    assert len([problem for problem in problems if "is stuck" in problem]) == 2


def test_missing_file_and_column_are_named(tmp_path):
    with pytest.raises(DryRunError, match=r"comm_execute_order.csv: No such file.*level 1"):
        read_execution(tmp_path)
    folder = write(tmp_path, 0, [("MatMul", 0)])
    (folder / "execute_order" / "execute_order.csv").write_text("index,node_name\n")
    with pytest.raises(DryRunError, match="no column stream_id, event_id"):
        read_execution(folder)


def test_folder_must_name_its_rank(tmp_path):
    with pytest.raises(DryRunError, match="expected a folder named rank_R"):
        check_execution([write(tmp_path, 0, []).rename(tmp_path / "first")])
