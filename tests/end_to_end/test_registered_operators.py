"""What the program asks of ATen is there on GPUs too, as far as torch's register says: it can be read where there is no
GPU and no driver."""

import re
import subprocess

import pytest
import torch
from conftest import PROGRAM

# Called where a tensor is known to be on a CPU.
ON_CPUS_ALONE = {
    "aten::_scaled_dot_product_flash_attention_for_cpu": "the kernel of attention on CPUs",
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": "the same",
}


def operators_of_the_program():
    """Names of the register ("aten::add.Tensor") of all operators that the program is linked with."""
    symbols = subprocess.run(["nm", "-D", "--undefined-only", "--demangle", PROGRAM], capture_output=True, text=True,
                             check=True).stdout
    called = set(re.findall(r"at::_ops::(\w+)::(?:call|redispatch)\(", symbols))
    known = {re.sub(r"[.]", "_", name.removeprefix("aten::")): name
             for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")}
    assert called <= known.keys(), called - known.keys()
    return {known[name] for name in called}


def has_kernel(name, key):
    return torch._C._dispatch_has_computed_kernel_for_dispatch_key(name, key)


def test_every_operator_has_a_kernel_for_cuda():
    if torch.version.cuda is None:
        pytest.skip("this torch is a CPU build")
    operators = operators_of_the_program()
    assert len(operators) > 100
    assert has_kernel("aten::mm", "CUDA") and not has_kernel(next(iter(ON_CPUS_ALONE)), "CUDA")
    missing = {name for name in operators if not has_kernel(name, "CUDA")}
    assert missing == operators & ON_CPUS_ALONE.keys()
