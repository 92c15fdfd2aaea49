#include "longspan/expert_parallel/expert_parallel.h"

#include <ATen/ATen.h>

#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "longspan/kernels/arrived_rows.h"
#include "longspan/memory/transfer.h"

namespace longspan {
namespace {

/// Returns the tensors' rows as bytes, side by side, so that all travel in one message.
at::Tensor packed(const std::vector<at::Tensor>& x_R) {
  std::vector<at::Tensor> bytes;
  for (const at::Tensor& x : x_R) {
    const int64_t width = x.dim() == 1 ? 1 : x.size(1);
    bytes.push_back(x.contiguous().view({x.size(0), width}).view(at::kByte));
  }
  return bytes.size() == 1 ? bytes[0] : at::cat(bytes, 1);
}

/// The rows to each rank and expert, as known on the host.
struct Plan {
  /// `numbers`: this rank's rows for each expert; then the rows that come from each of P ranks for
  /// each of the N experts here.
  Plan(const std::vector<int64_t>& numbers, int64_t P) {
    const int64_t E = std::ssize(numbers) / 2, N = E / P;
    const int64_t* const all = numbers.data();
    const int64_t* const arrived = all + E;
    leaving.assign(all, arrived);
    arriving.assign(arrived, arrived + E);
    for (int64_t rank = 0; rank < P; ++rank) {
      send_rows.push_back(std::accumulate(all + rank * N, all + (rank + 1) * N, int64_t{0}));
      recv_rows.push_back(
          std::accumulate(arrived + rank * N, arrived + (rank + 1) * N, int64_t{0}));
    }
    for (int64_t expert = 0; expert < N; ++expert) {
      counts.push_back(0);
      for (int64_t rank = 0; rank < P; ++rank) counts.back() += arrived[rank * N + expert];
    }
  }

  int64_t num_arriving() const {
    return std::accumulate(recv_rows.begin(), recv_rows.end(), int64_t{0});
  }

  std::vector<int64_t> leaving;               // rows for each expert
  std::vector<int64_t> arriving;              // rows from each rank for each expert here
  std::vector<int64_t> send_rows, recv_rows;  // rows to and from each rank
  std::vector<int64_t> counts;                // rows for each expert here
};

class Routes : public ExpertRoutes {
 public:
  /// `counts_2E`: the numbers of a Plan, on their way to the host.
  Routes(const Group& group, const at::Tensor& counts_2E, ExpertParallel::Use& used)
      : group_(group),
        counts_2E_(counts_2E),
        arrived_E_(counts_2E.narrow(0, counts_2E.size(0) / 2, counts_2E.size(0) / 2)),
        used_(used) {}
  Routes(const Group& group, std::vector<int64_t> numbers, ExpertParallel::Use& used)
      : group_(group), numbers_(std::move(numbers)), used_(used) {}

  const std::vector<int64_t>& leaving() const override { return plan().leaving; }
  const std::vector<int64_t>& counts() const override { return plan().counts; }

  /// Waits for the numbers at the first call.
  const std::vector<int64_t>& numbers() const override {
    if (numbers_.empty()) {
      const at::Tensor& here = counts_2E_->here();
      const int64_t* const first = here.const_data_ptr<int64_t>();
      numbers_.assign(first, first + here.numel());
    }
    return numbers_;
  }

  std::vector<at::Tensor> to_experts(const std::vector<at::Tensor>& x_R) const override {
    const at::Tensor arrived =
        group_.all_to_all(packed(x_R), plan().send_rows, plan().recv_rows).wait();
    return unpacked(arrived, order(arrived.device()).order_S, x_R);
  }

  std::vector<at::Tensor> back(const std::vector<at::Tensor>& y_S) const override {
    const at::Tensor by_expert = packed(y_S);
    const at::Tensor by_rank = by_expert.index_select(0, order(by_expert.device()).places_S);
    return unpacked(group_.all_to_all(by_rank, plan().recv_rows, plan().send_rows).wait(), {}, y_S);
  }

 private:
  /// Returns tensors with the dtypes and widths of `like`, from packed rows in the order order_S
  /// (undefined: unchanged).
  static std::vector<at::Tensor> unpacked(const at::Tensor& rows, const at::Tensor& order_S,
                                          const std::vector<at::Tensor>& like) {
    std::vector<at::Tensor> tensors;
    int64_t begin = 0;
    for (const at::Tensor& x : like) {
      const int64_t width = (x.dim() == 1 ? 1 : x.size(1)) * x.element_size();
      const at::Tensor part = rows.narrow(1, begin, width);
      // Copies: a single row of several tensors counts as contiguous at any offset.
      const at::Tensor own = order_S.defined()  ? part.index_select(0, order_S)
                             : like.size() == 1 ? part
                                                : part.clone(at::MemoryFormat::Contiguous);
      begin += width;
      const at::Tensor values = own.view(x.scalar_type());
      tensors.push_back(x.dim() == 1 ? values.squeeze(1) : values);
    }
    return tensors;
  }

  const Plan& plan() const {
    if (plan_) return *plan_;
    plan_.emplace(numbers(), group_.size());
    used_.num_rows +=
        std::accumulate(plan_->send_rows.begin(), plan_->send_rows.end(), int64_t{0}) -
        plan_->send_rows.at(static_cast<size_t>(group_.rank()));
    return *plan_;
  }

  /// On a GPU the kernel reads the counts that arrived there. The host knows only sums of rows.
  const ArrivedRows& order(at::Device device) const {
    if (order_) return *order_;
    const int64_t num_experts = std::ssize(plan().counts);
    if (!arrived_E_.defined() && !device.is_cpu()) {
      arrived_E_ = sent_to(at::tensor(plan().arriving, at::kLong), device);
    }
    if (arrived_E_.defined()) {
      order_ = order_arrived_on_gpu(arrived_E_, num_experts, plan().num_arriving());
    }
    if (order_) return *order_;
    const auto [order_S, places_S] = order_arrived(plan().arriving, num_experts);
    order_ = ArrivedRows{sent_to(order_S, device), sent_to(places_S, device)};
    return *order_;
  }

  Group group_;
  std::optional<ToHost> counts_2E_;  // not set where the numbers are known
  mutable at::Tensor arrived_E_;     // the rows that arrive, on their device; may be undefined
  mutable std::vector<int64_t> numbers_;
  ExpertParallel::Use& used_;
  mutable std::optional<Plan> plan_;
  mutable std::optional<ArrivedRows> order_;
};

}  // namespace

ExpertRange ExpertParallel::here(int64_t num_experts) const {
  const int64_t own = num_experts / group_.size();
  return {group_.rank() * own, (group_.rank() + 1) * own};
}

std::unique_ptr<ExpertRoutes> ExpertParallel::open(const at::Tensor& counts_E) {
  used_.num_opened += 1;
  const at::Tensor arrived_E = group_.all_to_all(counts_E).wait();
  return std::make_unique<Routes>(group_, at::cat({counts_E, arrived_E}), used_);
}

std::unique_ptr<ExpertRoutes> ExpertParallel::open_again(std::vector<int64_t> numbers) {
  return std::make_unique<Routes>(group_, std::move(numbers), used_);
}

}  // namespace longspan
