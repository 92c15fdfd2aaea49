// The operators of the device.
#pragma once

#include <ATen/core/stack.h>

#include <string_view>

namespace c10 {
class OperatorHandle;
}  // namespace c10

namespace longspan::testing::accelerator {

/// Registers a kernel for every ATen operator that has no kernel for the device. Also registers the
/// operators that CPU kernels cannot replace: memory, copies, and values for the host.
void register_operators();

/// Runs any operator by the CPU's kernel on the device's memory, as one launch. Throws FaultError.
void run_on_device(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace longspan::testing::accelerator
