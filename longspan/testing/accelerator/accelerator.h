// A simulated accelerator, for tests of device code on machines without an accelerator: ATen's
// device type PrivateUse1, in the process that calls install(). Its kernels are ATen's CPU kernels.
// Errors that occur only sometimes on a GPU occur here every time, with a message (findings.h):
// missing waits between streams, memory that is freed too early, host accesses to memory that the
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

/// Registers the device with torch; later calls are no-ops. Must be called before the first
/// backward pass, which counts the devices. Handles SIGSEGV (catch_touches).
void install();

/// Tensors that a kernel takes or makes, of any number.
using Tensors = std::vector<at::Tensor>;

/// Launches a kernel of Longspan's own on the current stream. `compute` gets the tensors as CPU
/// tensors, `outputs` after `inputs`; the results of `compute` become tensors of the device. The
/// launch reads all of `inputs`, and reads and writes all of `outputs`. Throws FaultError if a
/// tensor is not on the current device, and the errors of Machine::launch.
Tensors run_kernel(std::string_view name, const Tensors& inputs, const Tensors& outputs,
                   const std::function<Tensors(const Tensors&)>& compute);

}  // namespace longspan::testing::accelerator
