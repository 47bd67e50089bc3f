"""Write graphs as MindSpore prints them, and events by hand."""

from hyperparallel.dryrun.ir_order import order_of
from hyperparallel.dryrun.ir_text import parse_ir


def graph(name, lines, params=""):
    return f"subgraph @{name}({params}) {{\n" + "".join(f"  {line}\n" for line in lines) + "}\n"


def order(lines, *others, **options):
    """Events of a graph with these lines as its entry."""
    return order_of(parse_ir("# IR entry: @0_main\n" + graph("0_main", lines) + "".join(others)), **options)


def send(tag, to, reads="%para1_x", group="world", shape="(8, 8)"):
    attrs = f'{{shape: {shape}, dest_rank: I64({to}), group: "{group}", sr_tag: I64({tag})}}'
    return (
        f"Send({reads}) primitive_attrs: {attrs}\n      : (<Tensor[Float32], {shape}>) -> (<Tensor[Float32], {shape}>)"
    )


def receive(tag, source, reads="%para1_x", group="world", shape="(8, 8)", dtype="Float32"):
    attrs = f'{{shape: [8, 8], src_rank: I64({source}), group: "{group}", sr_tag: I64({tag})}}'
    return f"Receive({reads}) primitive_attrs: {attrs}\n      : (<Tensor[Float32], ()>) -> (<Tensor[{dtype}], {shape}>)"


def all_reduce(reads="%para1_x", group="world", ranks="(0, 1)"):
    return f'AllReduce({reads}) primitive_attrs: {{group: "{group}", group_rank_ids: {ranks}, op: "sum"}}'


def chain(*makers):
    """Events of operators that each read the one before; a maker takes `reads`."""
    lines, last = [], "%para1_x"
    for number, maker in enumerate(makers):
        lines.append(f"%{number}(v) = {maker(last)}")
        last = f"%{number}"
    return order([*lines, f"Return({last})"])
