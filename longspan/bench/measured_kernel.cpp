#include "longspan/bench/measured_kernel.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <time.h>

#include <utility>

namespace longspan {
namespace {

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

/// Measures the time between two events of the kernel's stream.
struct MeasuredKernel::OnDevice {
  explicit OnDevice(at::Device device)
      : begin(device.type(), c10::EventFlag::BACKEND_DEFAULT),
        end(device.type(), c10::EventFlag::BACKEND_DEFAULT),
        guard(device.type()),
        stream(guard.getStream(device)) {
    begin.record(stream);
  }

  double seconds() const {
    end.synchronize();
    return 1e-3 * begin.elapsedTime(end);
  }

  c10::Event begin, end;
  c10::impl::VirtualGuardImpl guard;
  c10::Stream stream;
};

MeasuredKernel::MeasuredKernel(const BlockKernel& kernel) : kernel_(kernel) {}
MeasuredKernel::~MeasuredKernel() = default;

template <typename Pass>
auto MeasuredKernel::measured(Work& work, const at::Tensor& q_TNH, const std::vector<Block>& blocks,
                              const Pass& pass) const {
  work.sum.pairs += pairs_of(blocks) * static_cast<double>(q_TNH.size(1));
  if (q_TNH.device().is_cpu()) {
    const double begin = thread_seconds();
    auto result = pass();
    work.sum.seconds += thread_seconds() - begin;
    return result;
  }
  auto& last = work.on_device.emplace_back(std::make_unique<OnDevice>(q_TNH.device()));
  auto result = pass();
  last->end.record(last->stream);
  return result;
}

AttentionResult MeasuredKernel::forward_round(const at::Tensor& q_TNH, const at::Tensor& k_SMH,
                                              const at::Tensor& v_SMH, const AttentionSpec& spec,
                                              const std::vector<Block>& blocks) const {
  return measured(forward_, q_TNH, blocks,
                  [&] { return kernel_.forward(q_TNH, k_SMH, v_SMH, spec, blocks); });
}

AttentionGradients MeasuredKernel::backward_blocks(const AttentionGradientInputs& inputs,
                                                   const AttentionSpec& spec,
                                                   const std::vector<Block>& blocks) const {
  return measured(backward_, inputs.q_TNH, blocks,
                  [&] { return kernel_.backward(inputs, spec, blocks); });
}

KernelWork MeasuredKernel::take(Work& work) {
  for (const auto& pass : work.on_device) work.sum.seconds += pass->seconds();
  work.on_device.clear();
  return std::exchange(work.sum, {});
}

KernelWork MeasuredKernel::take_forward() const { return take(forward_); }
KernelWork MeasuredKernel::take_backward() const { return take(backward_); }

}  // namespace longspan
