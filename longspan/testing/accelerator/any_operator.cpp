// Runs an ATen operator on the device. Its schema determines which tensors the launch reads and
// writes.
#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DeviceGuard.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "longspan/testing/accelerator/accelerator.h"
#include "longspan/testing/accelerator/operators.h"
#include "longspan/testing/accelerator/recorded_operators.h"
#include "longspan/testing/accelerator/tensors.h"

namespace longspan::testing::accelerator {
namespace {

/// Operators for whose result shapes or values CUDA's host waits.
constexpr std::array<std::string_view, 11> kWaitedFor{"aten::nonzero",
                                                      "aten::masked_select",
                                                      "aten::_unique",
                                                      "aten::_unique2",
                                                      "aten::unique_dim",
                                                      "aten::unique_consecutive",
                                                      "aten::unique_dim_consecutive",
                                                      "aten::equal",
                                                      "aten::is_nonzero",
                                                      "aten::repeat_interleave",
                                                      "aten::bincount"};

bool writes(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

/// True if the operator only makes views and computes nothing.
bool makes_views(const c10::FunctionSchema& schema) {
  return std::ranges::any_of(schema.returns(), [](const c10::Argument& result) {
    return result.alias_info() != nullptr && !result.alias_info()->isWrite();
  });
}

class Call {
 public:
  Call(const c10::OperatorHandle& op, torch::jit::Stack* stack)
      : op_(op),
        schema_(op.schema()),
        name_(schema_.operator_name().name),
        stack_(*stack),
        num_arguments_(schema_.arguments().size()) {
    const auto begin = std::prev(stack_.end(), static_cast<ptrdiff_t>(num_arguments_));
    arguments_.assign(begin, stack_.end());
    for (size_t i = 0; i < num_arguments_; ++i) look_at(i);
    if (!device_) throw std::logic_error(name_ + " has no device");
    if (std::ranges::any_of(on_host_, [](const at::Tensor& x) { return x.dim() > 0; })) {
      report(Fault::kWrongDevice,
             fmt::format("{} gets a tensor of the device and one of the host", name_));
    }
  }

  void run() {
    const c10::DeviceGuard guard(*device_);
    const bool views = makes_views(schema_);
    std::optional<Launched> launched;
    if (!views) {
      const int stream = current_stream(device_->index());
      launched = Machine::get().launch(short_name(), stream, uses_);
    }
    compute();
    for (auto& [given, of_kernel] : written_) keep_new_shape(given, of_kernel, launched);
    const size_t num_results = schema_.returns().size();
    for (size_t i = 0; i < num_results; ++i) {
      c10::IValue& result = stack_[stack_.size() - num_results + i];
      result = on_device(std::move(result), schema_.returns()[i], launched);
    }
    if (std::ranges::find(kWaitedFor, name_) != kWaitedFor.end()) {
      Machine::get().wait_on_host(Machine::get().behind(current_stream(device_->index())),
                                  short_name());
    }
  }

 private:
  std::string_view short_name() const {
    const std::string_view name = name_;
    return name.starts_with("aten::") ? name.substr(6) : name;
  }

  at::Tensor taken(const at::Tensor& x, bool is_written) {
    if (!x.defined()) return x;
    if (x.is_cpu()) {
      on_host_.push_back(x);
      return x;
    }
    if (device_ && *device_ != x.device()) {
      report(Fault::kWrongDevice, fmt::format("{} gets tensors of device {} and of device {}",
                                              name_, device_->index(), x.device().index()));
    }
    device_ = x.device();
    uses_.push_back(use_of(x, is_written));
    // An empty tensor may be resized by the operator, so it needs memory that can grow.
    at::Tensor of_kernel = is_written && x.numel() == 0
                               ? at::empty(x.sizes(), x.options().device(at::kCPU))
                               : side_.of(x);
    if (is_written) written_.emplace_back(x, of_kernel);
    return of_kernel;
  }

  void look_at(size_t i) {
    c10::IValue& value = stack_[stack_.size() - num_arguments_ + i];
    const bool is_written = writes(schema_.arguments()[i]);
    if (value.isTensor()) {
      value = taken(value.toTensor(), is_written);
    } else if (value.isTensorList()) {
      std::vector<at::Tensor> tensors = value.toTensorVector();
      for (at::Tensor& tensor : tensors) tensor = taken(tensor, is_written);
      value = std::move(tensors);
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> tensors;
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
        tensors.push_back(tensor ? std::optional(taken(*tensor, is_written)) : std::nullopt);
      }
      value = std::move(tensors);
    } else if (value.isDevice() && value.toDevice().type() == kDeviceType) {
      const at::Device device = value.toDevice();
      device_ = device.has_index()
                    ? device
                    : at::Device(kDeviceType, static_cast<at::DeviceIndex>(current_device()));
      value = at::Device(at::kCPU);
    }
  }

  void compute() {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    op_.callBoxed(stack_);
  }

  /// Keeps the new shape of an output that the operator has resized.
  void keep_new_shape(const at::Tensor& given, const at::Tensor& of_kernel,
                      const std::optional<Launched>& launched) const {
    if (given.sizes() == of_kernel.sizes() && side_.is_view(of_kernel)) return;
    if (given.sizes() != of_kernel.sizes()) given.resize_(of_kernel.sizes());
    if (of_kernel.numel() == 0) return;
    KernelSide side;
    side.of(given).copy_(of_kernel);
    Machine::get().also_uses(launched.value(), {use_of(given, /*writes=*/true)});
  }

  at::Tensor on_device(const at::Tensor& x, const std::optional<Launched>& launched) const {
    if (!x.defined() || !x.is_cpu()) return x;
    if (side_.is_view(x)) return side_.view_of(x);
    return adopted(x, *device_, launched.value());
  }

  c10::IValue on_device(c10::IValue result, const c10::Argument& as,
                        const std::optional<Launched>& launched) const {
    if (writes(as)) {
      for (size_t i = 0; i < num_arguments_; ++i) {
        const c10::Argument& argument = schema_.arguments()[i];
        if (writes(argument) &&
            argument.alias_info()->beforeSets() == as.alias_info()->beforeSets())
          return arguments_[i];
      }
      throw std::logic_error(name_ + " returns what it writes, and was not given it");
    }
    if (result.isTensor()) return on_device(result.toTensor(), launched);
    if (result.isTensorList()) {
      std::vector<at::Tensor> tensors = result.toTensorVector();
      for (at::Tensor& tensor : tensors) tensor = on_device(tensor, launched);
      return tensors;
    }
    return result;
  }

  const c10::OperatorHandle& op_;
  const c10::FunctionSchema& schema_;
  const std::string name_;
  torch::jit::Stack& stack_;
  const size_t num_arguments_;
  std::vector<c10::IValue> arguments_;  // as given
  std::vector<at::Tensor> on_host_;
  std::vector<std::pair<at::Tensor, at::Tensor>> written_;  // as given, and for the kernel
  std::vector<Use> uses_;
  std::optional<at::Device> device_;
  KernelSide side_;
};

}  // namespace

void run_on_device(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (records_operators()) record_operator(c10::toString(op.operator_name()));
  Call(op, stack).run();
}

Tensors run_kernel(std::string_view name, const Tensors& inputs, const Tensors& outputs,
                   const std::function<Tensors(const Tensors&)>& compute) {
  const at::Device device(kDeviceType, static_cast<at::DeviceIndex>(current_device()));
  KernelSide side;
  Tensors given;
  std::vector<Use> uses;
  for (const bool writes : {false, true}) {
    for (const at::Tensor& x : writes ? outputs : inputs) {
      if (x.defined() && x.device() != device) {
        report(Fault::kWrongDevice,
               fmt::format("{} is started on device {}, the current one, and gets a tensor of {}",
                           name, device.index(), x.device().str()));
      }
      uses.push_back(use_of(x, writes));
      given.push_back(side.of(x));
    }
  }
  const Launched launched = Machine::get().launch(name, current_stream(device.index()), uses);
  Tensors results;
  for (const at::Tensor& result : compute(given)) {
    results.push_back(result.defined() && side.is_view(result) ? side.view_of(result)
                                                               : adopted(result, device, launched));
  }
  return results;
}

}  // namespace longspan::testing::accelerator
