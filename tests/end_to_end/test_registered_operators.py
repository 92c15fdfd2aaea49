"""What the program asks of ATen is there on GPUs too, as far as torch's register says: it can be read where there is no
GPU and no driver."""

import json
import pathlib
import re
import subprocess

import pytest
import torch
from conftest import BUILD, PROGRAM, Running, settings_of
from device import simulated_environment, simulated_program
from dispatched_operators import is_by_this_torch, listed, names_in, not_listed

# Called where a tensor is known to be on a CPU.
ON_CPUS_ALONE = {
    "aten::_scaled_dot_product_flash_attention_for_cpu": "the kernel of attention on CPUs",
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": "the same",
}
# What torch asks of simulated GPUs, and of CUDA under another name.
OF_OTHER_DEVICES = {
    "aten::_copy_from": "the part of copy_ that a device of another kind brings; CUDA's is in copy_",
    "aten::_copy_from_and_resize": "the same",
}
NO_KERNEL = ON_CPUS_ALONE | OF_OTHER_DEVICES


def in_register():
    """Names of ATen's operators ("aten::add.Tensor")."""
    return {name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")}


def operators_of_the_program():
    """The names of all operators that the program is linked with."""
    symbols = subprocess.run(["nm", "-D", "--undefined-only", "--demangle", PROGRAM], capture_output=True, text=True,
                             check=True).stdout
    called = set(re.findall(r"at::_ops::(\w+)::(?:call|redispatch)\(", symbols))
    known = {re.sub(r"[.]", "_", name.removeprefix("aten::")): name for name in in_register()}
    assert called <= known.keys(), called - known.keys()
    return {known[name] for name in called}


def dispatched_operators():
    """Those that tests have dispatched on simulated GPUs, of this torch."""
    names = {name for name in listed() if name.startswith("aten::")}
    assert len(names) > 50
    if is_by_this_torch():
        assert names <= in_register(), names - in_register()
    return names & in_register()


@pytest.fixture(scope="module")
def operators():
    if torch.version.cuda is None:
        pytest.skip("this torch is a CPU build")
    linked = operators_of_the_program()
    assert len(linked) > 100
    return linked | dispatched_operators()


def has_kernel(name, key):
    return torch._C._dispatch_has_computed_kernel_for_dispatch_key(name, key)


def test_every_operator_has_a_kernel_for_cuda(operators):
    assert has_kernel("aten::mm", "CUDA") and not has_kernel(next(iter(ON_CPUS_ALONE)), "CUDA")
    missing = {name for name in operators if not has_kernel(name, "CUDA")}
    assert missing == operators & NO_KERNEL.keys()


def headers():
    """ATen's headers that the program is compiled with: those of the build, where it says so, or of this torch."""
    commands = BUILD / "compile_commands.json"
    said = json.loads(commands.read_text()) if commands.exists() else []
    folders = {folder for entry in said for folder in re.findall(r"-isystem (\S+)", entry["command"])}
    found = [folder for folder in folders if (pathlib.Path(folder) / "ATen" / "ops" / "mm_ops.h").exists()]
    assert len(found) <= 1, found
    return pathlib.Path(found[0] if found else pathlib.Path(torch.__file__).parent / "include") / "ATen" / "ops"


def compiled_schemas():
    """What each operator takes and gives by the headers: {name: schema}."""
    one = re.compile(r'\bname = "([^"]*)";.*?\boverload_name = "([^"]*)";.*?\bschema_str = ("(?:[^"\\]|\\.)*");', re.DOTALL)
    schemas = {}
    for header in headers().glob("*_ops.h"):
        for name, overload, text in one.findall(header.read_text()):
            schemas[f"{name}.{overload}" if overload else name] = "aten::" + json.loads(text)
    return schemas


def test_every_operator_has_the_schema_that_was_compiled(operators):
    compiled = compiled_schemas()
    assert operators <= compiled.keys(), operators - compiled.keys()
    for name in sorted(operators):
        registered = re.search(r"^schema: (.*)$", torch._C._dispatch_dump(name), re.MULTILINE)[1]
        # Both as torch writes them: headers have 0 where the register has 0.0.
        assert str(torch._C.parse_schema(compiled[name])) == registered


@pytest.mark.parametrize("rows, keys", [("", dict(bf16=True)), ("composed", dict(finetuning_type="lora", lora_dropout=0.1))])
def test_what_is_dispatched_is_listed(models, data, tmp_path, rows, keys):
    record = tmp_path / "operators"
    variables = simulated_environment(BUILD) | dict(SIMULATED_OPERATORS=str(record), SIMULATED_ROWS=rows)
    settings = settings_of(models["llama"], data, tmp_path / "run", max_steps=1, device="cuda", **keys)
    ended = Running(settings, program=simulated_program(BUILD), **variables).wait(120)
    assert ended.status == 0, ended.text
    assert {"aten::mm.out", "aten::empty_strided"} <= names_in(record)
    assert not not_listed(record)
