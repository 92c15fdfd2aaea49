// A simulated accelerator, for tests of code for devices on machines that have none: ATen's device
// type PrivateUse1, in the process that calls install(). Its kernels are ATen's of the CPU. What
// goes wrong on a GPU now and then goes wrong here every time, and says what it is
// (findings.h): waits between streams that are missing, memory that is freed too early, what the
// host must not touch.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <functional>
#include <string_view>
#include <vector>

#include "longspan/testing/accelerator/findings.h"
#include "longspan/testing/accelerator/machine.h"

namespace longspan::testing::accelerator {

inline constexpr at::DeviceType kDeviceType = at::kPrivateUse1;
inline constexpr const char* kDeviceName = "simulated";

/// Registers the device with torch, once in a process, however often it is called: before the first
/// backward pass, which counts the devices that there are. Takes SIGSEGV (catch_touches).
void install();

/// How many tensors a kernel takes and makes is up to the kernel.
using Tensors = std::vector<at::Tensor>;

/// Launches a kernel of our own on the current stream: `compute` gets the tensors as tensors of the
/// CPU, and what it returns becomes tensors of the device. It reads all of `inputs`, and reads and
/// writes all of `outputs`, which it gets behind them. Throws FaultError: tensors are not on the
/// current device, and what Machine::launch throws.
Tensors run_kernel(std::string_view name, const Tensors& inputs, const Tensors& outputs,
                   const std::function<Tensors(const Tensors&)>& compute);

}  // namespace longspan::testing::accelerator
