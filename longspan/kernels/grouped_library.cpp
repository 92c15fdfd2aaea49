#include "longspan/kernels/grouped_library.h"

#include <ATen/ATen.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <array>
#include <exception>
#include <functional>
#include <mutex>
#include <utility>

#include "longspan/cuda/cuda.h"

namespace longspan::grouped {
namespace {

struct Chosen {
  std::mutex mutex;
  std::vector<ExpertGemm> gemms;
  static Chosen& get() {
    static Chosen chosen;
    return chosen;
  }
};

/// Returns repeated numbers that are neither equal nor random: a run's random numbers stay as they
/// are.
at::Tensor some_numbers(at::IntArrayRef sizes, const at::TensorOptions& options) {
  constexpr int64_t kRepeated = 4099;  // prime, so that rows differ
  const int64_t size = c10::multiply_integers(sizes);
  const at::Tensor some = at::arange(kRepeated, options.dtype(at::kInt))
                              .remainder_(251)
                              .to(options.dtype())
                              .div_(251),
                   all = at::empty({(size + kRepeated - 1) / kRepeated, kRepeated}, options);
  return all.copy_(some).view(-1).narrow(0, 0, size).view(sizes);
}

double milliseconds_of(at::Device device, const std::function<void()>& work) {
  const c10::Stream stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  c10::Event begin(device.type(), c10::EventFlag::BACKEND_DEFAULT),
      end(device.type(), c10::EventFlag::BACKEND_DEFAULT);
  begin.record(stream);
  work();
  end.record(stream);
  end.synchronize();
  return begin.elapsedTime(end);
}

/// Returns the rows of experts that all have equally many, and where the first has half of them.
std::array<SortedRows, 2> even_and_skewed(int64_t num_rows, int64_t E,
                                          const at::TensorOptions& options) {
  const auto sorted = [&](int64_t of_first) {
    const int64_t others = std::max<int64_t>(1, E - 1);
    at::Tensor counts = at::full({E}, (num_rows - of_first) / others, options.dtype(at::kLong));
    counts.narrow(0, 0, 1).fill_(num_rows - (num_rows - of_first) / others * (E - 1));
    return sort_out(counts, num_rows);
  };
  return {sorted(num_rows / E), sorted(num_rows / 2)};
}

GemmTimes times_of(const UsedGemm& used, at::Device device) {
  const ExpertGemm& gemm = used.gemm;
  const at::TensorOptions options = at::device(device).dtype(at::kBFloat16);
  const int64_t E = gemm.num_experts, num_rows = used.num_rows;
  const at::Tensor order = at::arange(num_rows, options.dtype(at::kLong)).flip(0), in_place;
  const PickedRows x{some_numbers({num_rows, gemm.depth}, options), used.picked ? order : in_place};
  const at::Tensor matrices = gemm.transposed
                                  ? some_numbers({E, gemm.depth, gemm.columns}, options)
                                  : some_numbers({E, gemm.columns, gemm.depth}, options);
  const auto [even, skewed] = even_and_skewed(num_rows, E, options);
  GroupTable table(device);
  table.add(matrices.unbind(0));
  table.send();
  at::Tensor y = at::empty({num_rows, gemm.columns}, options);
  const at::Tensor to_S = used.placed ? order : in_place;
  GroupedOperands by_library{x, table.at(0)}, own = by_library;
  own.matrices.side_by_side = at::Tensor();
  const auto times = [&](const auto& multiply) {
    const auto round = [&](const SortedRows& sorted) {
      return milliseconds_of(device, [&] { multiply(sorted); });
    };
    multiply(even);  // at first memory is allocated
    GemmTimes::OfRows all;
    all.even = std::min(round(even), round(even));
    all.skewed = std::min(round(skewed), round(skewed));
    return all;
  };
  GemmTimes result;
  result.own = times([&](const SortedRows& sorted) {
    if (gemm.transposed) {
      input_gradient_out(y, to_S, sorted, {own});
    } else {
      forward_out(y, to_S, sorted, {own}, {});
    }
  });
  result.library = times([&](const SortedRows& sorted) {
    multiply_by_library(y, to_S, sorted, by_library, gemm.transposed);
  });
  return result;
}

}  // namespace

void let_library_multiply(std::vector<ExpertGemm> gemms) {
  Chosen& chosen = Chosen::get();
  const std::lock_guard lock(chosen.mutex);
  chosen.gemms = std::move(gemms);
}

bool library_multiplies(const ExpertGemm& gemm) {
  Chosen& chosen = Chosen::get();
  const std::lock_guard lock(chosen.mutex);
  return std::ranges::count(chosen.gemms, gemm) > 0 && !gpu_numbers().deterministic;
}

void multiply_by_library(at::Tensor& y, const at::Tensor& to_S, const SortedRows& sorted,
                         const GroupedOperands& operands, bool transposed, int64_t room) {
  const auto& [rows, matrices] = operands;
  const at::Tensor& held = matrices.side_by_side;
  TORCH_CHECK(held.defined(), "at::_grouped_mm needs matrices side by side");
  const at::Tensor by_depth = transposed ? held : held.transpose(1, 2),
                   ends_E = sorted.begins.narrow(0, 1, sorted.num_groups);
  const int64_t copied = y.size(1) + (rows.from_S.defined() ? rows.x.size(1) : 0);
  const int64_t most = std::max<int64_t>(1, room / (2 * copied));
  for (int64_t begin = 0; begin < sorted.num_rows; begin += most) {
    const int64_t size = std::min(most, sorted.num_rows - begin);
    const auto part = [&](const at::Tensor& all) { return all.narrow(0, begin, size); };
    const at::Tensor x =
        rows.from_S.defined() ? rows.x.index_select(0, part(rows.from_S)) : part(rows.x);
    const at::Tensor product =
        at::_grouped_mm(x, by_depth, (ends_E - begin).clamp_(0, size).to(at::kInt));
    if (to_S.defined()) {
      y.index_copy_(0, part(to_S), product);
    } else {
      part(y).copy_(product);
    }
  }
}

GemmTimes time_gemm(const UsedGemm& used, at::Device device) {
  const auto free_memory = c10::make_scope_exit([&] {
    try {
      c10::getDeviceAllocator(device.type())->emptyCache();
    } catch (const std::exception&) {  // after an error of the GPU, which the next kernel reports
    }
  });
  return times_of(used, device);
}

}  // namespace longspan::grouped
