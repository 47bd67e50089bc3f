"""Assembler text of the stub library: mostly functions that return 0."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable

from hyperparallel.errors import DryRunError

# Two symbols have to be real. Static constructors in the plug-in register error texts through
# ge::StatusFactory::Instance() and use a std::map at the start of the object it returns, in code that was
# inlined from the vendor's header. Built with the old std::string, as the vendor's libraries are.
# And a thread polls the device with aclrtProcessReport(milliseconds), which waits there for a report or for the time
# to pass; returning at once, it would keep a core busy for as long as the process lives.
REAL_SOURCE = r"""
#include <unistd.h>
#include <cstdint>
#include <map>
#include <string>
namespace ge {
class StatusFactory {
 public:
  static StatusFactory *Instance();
 private:
  std::map<uint32_t, std::string> texts_;
};
StatusFactory *StatusFactory::Instance() {
  static StatusFactory only;
  return &only;
}
}  // namespace ge
extern "C" int aclrtProcessReport(int32_t milliseconds) {
  usleep(milliseconds > 0 && milliseconds < 100 ? milliseconds * 1000 : 100000);
  return 0;
}
"""
REAL_SYMBOLS = frozenset({"_ZN2ge13StatusFactory8InstanceEv", "aclrtProcessReport"})

# Level 1 creates some vendor objects on the stack and destroys them with inlined code, which releases a
# std::shared_ptr inside. Their constructors, and functions that return such an object, have to clear it:
# {class: bytes}, and functions by class and name.
_CLEARING_CONSTRUCTORS = {
    "AscendString": 16,
    "Graph": 16,
    "Operator": 24,
    "Promote": 16,
    "Shape": 16,
    "ShapeAndType": 16,
    "Tensor": 16,
    "TensorDesc": 16,
    "TensorType": 16,
}
_CLEARING_FUNCTIONS = {
    "Operator": ("GetInputDesc", "GetOutputDesc", "GetInputDescByName", "GetOutputDescByName", "GetDynamicInputDesc"),
    "OperatorFactory": ("CreateOperator",),
    "TensorDesc": ("GetShape", "GetOriginShape"),
    "Shape": ("GetDims",),
    "ShapeAndType": ("GetShape",),
    "Graph": ("GetDirectNode",),
    "GNode": ("GetInDataNodesAndPortIndexs", "GetOutDataNodesAndPortIndexs", "GetInControlNodes", "GetOutControlNodes"),
}
_EMPTY_TEXT = "_ZNK2ge12AscendString9GetStringEv"  # returns a char pointer that is used at once

# Machine code per architecture: return 0; clear 16 or 24 bytes at the first (hidden) argument and return it;
# return the address of an empty text; and what marks a symbol as a function. On aarch64 the hidden argument of
# a function that returns an object is in another register (x8) than a constructor's `this` (x0).
_CODE = {
    "x86_64": {
        "zero": "xorl %eax,%eax",
        "mark": "@",
        "text": "leaq .Lempty(%rip),%rax",
        "clear16": "movq $0,(%rdi)\nmovq $0,8(%rdi)\nmovq %rdi,%rax",
        "clear24": "movq $0,(%rdi)\nmovq $0,8(%rdi)\nmovq $0,16(%rdi)\nmovq %rdi,%rax",
        "return24": "movq $0,(%rdi)\nmovq $0,8(%rdi)\nmovq $0,16(%rdi)\nmovq %rdi,%rax",
    },
    "aarch64": {
        "zero": "mov x0, xzr",
        "mark": "%",
        "text": "adr x0, .Lempty",
        "clear16": "stp xzr, xzr, [x0]",
        "clear24": "stp xzr, xzr, [x0]\nstr xzr, [x0, 16]",
        "return24": "stp xzr, xzr, [x8]\nstr xzr, [x8, 16]",
    },
}


def assembler_source(wanted: Iterable[str], machine: str = platform.machine()) -> str:
    """Define every wanted symbol.

    Args:
        wanted: symbol names as the linker has them.
        machine: "x86_64" or "aarch64".

    Raises:
        DryRunError: another processor.

    Returns:
        GNU assembler text.

    Example:
        >>> "HcclSend" in assembler_source(["HcclSend"], "x86_64")
        True
    """
    if machine not in _CODE:
        raise DryRunError(f"no stubs for the processor {machine}; the dry run knows {' and '.join(_CODE)}")
    code = _CODE[machine]
    names = set(wanted)
    # C++ type information and virtual tables are data; everything else is called.
    data = {name for name in names if name.startswith(("_ZTI", "_ZTV", "_ZTS", "_ZTT"))}
    lines = [".text", ".balign 16", ".Lempty:", ".zero 16"]
    for name in sorted(names - data):
        body = code["text" if name == _EMPTY_TEXT else _body(name)]
        lines += [f'.globl "{name}"', f'.type "{name}", {code["mark"]}function', f'"{name}":', body, "ret"]
    lines += [".data", ".balign 16"]
    for name in sorted(data):
        lines += [f'.globl "{name}"', f'.type "{name}", {code["mark"]}object', f'.size "{name}", 512']
        lines += [f'"{name}":', ".zero 512"]
    lines.append(f'.section .note.GNU-stack,"",{code["mark"]}progbits')
    return "\n".join(lines) + "\n"


def _body(name: str) -> str:
    """Choose what a function does by its mangled name: `_ZN2ge` n class, then `C1E` or n function."""
    match = re.match(r"_ZNK?2ge(\d+)(.*)$", name)
    if not match:
        return "zero"
    owner, rest = match[2][: int(match[1])], match[2][int(match[1]) :]
    if re.match(r"C[12]E", rest):  # C1 and C2 are the two symbols of one constructor
        return f"clear{_CLEARING_CONSTRUCTORS[owner]}" if owner in _CLEARING_CONSTRUCTORS else "zero"
    match = re.match(r"(\d+)(.*)$", rest)
    returns_object = match and match[2][: int(match[1])] in _CLEARING_FUNCTIONS.get(owner, ())
    return "return24" if returns_object else "zero"
