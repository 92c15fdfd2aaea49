#include "longspan/expert_parallel/expert_parallel.h"

#include <ATen/ATen.h>

#include <numeric>
#include <utility>

#include "longspan/memory/transfer.h"

namespace longspan {
namespace {

/// Rows of bytes of each tensor side by side, so that all of them travel in one message.
at::Tensor packed(const std::vector<at::Tensor>& x_R) {
  std::vector<at::Tensor> bytes;
  for (const at::Tensor& x : x_R) {
    const int64_t width = x.dim() == 1 ? 1 : x.size(1);
    bytes.push_back(x.contiguous().view({x.size(0), width}).view(at::kByte));
  }
  return bytes.size() == 1 ? bytes[0] : at::cat(bytes, 1);
}

class Routes : public ExpertRoutes {
 public:
  /// counts_E: of this rank's rows. arrived_PN: of those that come, from each rank for each expert
  /// that is here.
  Routes(Group group, const at::Tensor& counts_E, const at::Tensor& arrived_PN)
      : group_(std::move(group)) {
    const int64_t P = arrived_PN.size(0), N = arrived_PN.size(1);
    const int64_t* const arrived = arrived_PN.const_data_ptr<int64_t>();
    const int64_t* const leaving = counts_E.const_data_ptr<int64_t>();
    std::vector<int64_t> begins(P *
                                N);  // among what arrives, which lies by rank and then by expert
    std::exclusive_scan(arrived, arrived + P * N, begins.begin(), int64_t{0});
    for (int64_t rank = 0; rank < P; ++rank) {
      send_rows_.push_back(
          std::accumulate(leaving + rank * N, leaving + (rank + 1) * N, int64_t{0}));
      recv_rows_.push_back(
          std::accumulate(arrived + rank * N, arrived + (rank + 1) * N, int64_t{0}));
    }
    std::vector<int64_t> order;
    for (int64_t expert = 0; expert < N; ++expert) {
      counts_.push_back(0);
      for (int64_t rank = 0; rank < P; ++rank) {
        const int64_t place = rank * N + expert;
        counts_.back() += arrived[place];
        for (int64_t row = 0; row < arrived[place]; ++row) order.push_back(begins[place] + row);
      }
    }
    order_S_ = at::tensor(order, at::kLong);
    std::vector<int64_t> places(order.size());
    for (size_t i = 0; i < order.size(); ++i) places[order[i]] = static_cast<int64_t>(i);
    places_S_ = at::tensor(places, at::kLong);
  }

  const std::vector<int64_t>& counts() const override { return counts_; }

  std::vector<at::Tensor> to_experts(const std::vector<at::Tensor>& x_R) const override {
    const at::Tensor arrived = group_.all_to_all(packed(x_R), send_rows_, recv_rows_).wait();
    return unpacked(arrived, sent_to(order_S_, arrived.device()), x_R);
  }

  std::vector<at::Tensor> back(const std::vector<at::Tensor>& y_S) const override {
    const at::Tensor by_expert = packed(y_S);
    const at::Tensor by_rank = by_expert.index_select(0, sent_to(places_S_, by_expert.device()));
    return unpacked(group_.all_to_all(by_rank, recv_rows_, send_rows_).wait(), {}, y_S);
  }

 private:
  /// Tensors like those that were packed, of these rows in this order (undefined: as they are).
  static std::vector<at::Tensor> unpacked(const at::Tensor& rows, const at::Tensor& order_S,
                                          const std::vector<at::Tensor>& like) {
    std::vector<at::Tensor> tensors;
    int64_t begin = 0;
    for (const at::Tensor& x : like) {
      const int64_t width = (x.dim() == 1 ? 1 : x.size(1)) * x.element_size();
      const at::Tensor part = rows.narrow(1, begin, width);
      // A copy: one row of several tensors counts as contiguous wherever it begins.
      const at::Tensor own = order_S.defined()  ? part.index_select(0, order_S)
                             : like.size() == 1 ? part
                                                : part.clone(at::MemoryFormat::Contiguous);
      begin += width;
      const at::Tensor values = own.view(x.scalar_type());
      tensors.push_back(x.dim() == 1 ? values.squeeze(1) : values);
    }
    return tensors;
  }

  Group group_;
  std::vector<int64_t> send_rows_, recv_rows_, counts_;
  at::Tensor order_S_;   // of what arrives, by expert
  at::Tensor places_S_;  // of what arrives, among that
};

}  // namespace

ExpertParallel::ExpertParallel(Group group, at::Device device)
    : group_(std::move(group)), device_(device) {}

ExpertRange ExpertParallel::here(int64_t num_experts) const {
  const int64_t own = num_experts / group_.size();
  return {group_.rank() * own, (group_.rank() + 1) * own};
}

std::unique_ptr<ExpertRoutes> ExpertParallel::open(const at::Tensor& counts_E) {
  const at::Tensor arrived_E = group_.all_to_all(sent_to(counts_E, device_)).wait().cpu();
  const auto [begin, end] = here(counts_E.numel());
  used_.num_opened += 1;
  used_.num_rows += (counts_E.sum() - counts_E.narrow(0, begin, end - begin).sum()).item<int64_t>();
  return std::make_unique<Routes>(group_, counts_E.contiguous(),
                                  arrived_E.view({group_.size(), end - begin}));
}

}  // namespace longspan
