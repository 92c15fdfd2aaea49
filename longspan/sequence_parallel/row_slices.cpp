#include "longspan/sequence_parallel/row_slices.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "longspan/comm/differentiable.h"
#include "longspan/kernels/fused_op.h"
#include "longspan/memory/transfer.h"

namespace longspan {
namespace {

/// Returns the documents of tokens [begin, begin + size) of a row.
RowSlice slice_of(const Packing& packing, int64_t begin, int64_t size) {
  RowSlice slice;
  std::vector<int64_t> lengths;
  for (int64_t d = 0; d < packing.num_documents(); ++d) {
    const int64_t from = std::max(packing.begin(d), begin),
                  to = std::min(packing.end(d), begin + size);
    if (from >= to) continue;
    if (lengths.empty()) slice.num_before = from - packing.begin(d);
    lengths.push_back(to - from);
  }
  slice.packing = Packing::from_lengths(lengths);
  return slice;
}

at::Tensor index_of(const std::vector<int64_t>& places) { return at::tensor(places, at::kLong); }

}  // namespace

RowSlices::RowSlices(const Packing& packing,
                     const std::vector<std::vector<int64_t>>& places_by_rank, Group group)
    : group_(std::move(group)), size_(packing.num_tokens() / group_.size()) {
  const int P = group_.size(), me = group_.rank();
  slice_ = slice_of(packing, me * size_, size_);
  is_there_ = true;
  for (int p = 0; p < P; ++p) {
    for (int64_t i = 0; i < size_; ++i) {
      is_there_ = is_there_ && places_by_rank[p][i] == p * size_ + i;
    }
  }
  if (is_there_) return;
  // Each rank sends the tokens of a slice in its own order.
  const auto rank_of = [&](int64_t place) { return place / size_; };
  const std::vector<int64_t>& mine = places_by_rank[me];
  std::vector<int64_t> order(size_), returned(size_), arrived;
  std::iota(order.begin(), order.end(), int64_t{0});
  std::ranges::stable_sort(order, {}, [&](int64_t i) { return rank_of(mine[i]); });
  std::vector<int64_t> sent(P), received(P);
  for (int64_t i = 0; i < size_; ++i) {
    returned[order[i]] = i;
    sent[rank_of(mine[i])] += 1;
  }
  for (int p = 0; p < P; ++p) {
    for (const int64_t place : places_by_rank[p]) {
      if (rank_of(place) != me) continue;
      arrived.push_back(place - me * size_);
      received[p] += 1;
    }
  }
  std::vector<int64_t> where(size_);
  for (int64_t i = 0; i < size_; ++i) where[arrived[i]] = i;
  to_slice_ = {index_of(order), sent, received, index_of(where)};
  from_slice_ = {index_of(arrived), received, sent, index_of(returned)};
}

at::Tensor RowSlices::routed(const at::Tensor& x_X, const Route& there, const Route& back) const {
  const auto send = [group = group_](const at::Tensor& x, const Route& route) {
    const c10::NoGradGuard no_grad;
    const auto on = [&](const at::Tensor& index) { return sent_to(index, x.device()); };
    const at::Tensor arrived =
        group.all_to_all(x.index_select(0, on(route.order)), route.send_rows, route.recv_rows)
            .wait();
    return arrived.index_select(0, on(route.places));
  };
  const at::Tensor y_X = send(x_X.detach(), there);
  if (!needs_backward({x_X}, {})) return y_X;
  return attach_backward({y_X}, {x_X}, {}, [send, back](const std::vector<at::Tensor>& gradients) {
    return std::vector<at::Tensor>{send(gradients[0], back)};
  })[0];
}

at::Tensor RowSlices::to_slice(const at::Tensor& x_tX) const {
  return is_there_ ? x_tX : routed(x_tX, to_slice_, from_slice_);
}

at::Tensor RowSlices::from_slice(const at::Tensor& x_sX) const {
  return is_there_ ? x_sX : routed(x_sX, from_slice_, to_slice_);
}

at::Tensor RowSlices::before_slice(const at::Tensor& x_sX, int64_t size) const {
  const int64_t own = std::min(size, size_), wanted = std::min(size, slice_.num_before);
  const at::Tensor last_X = x_sX.narrow(0, size_ - own, own).contiguous();
  // If slices are shorter than `wanted`, tokens of several ranks.
  const at::Tensor all_X = all_gather(last_X, group_);
  return all_X.narrow(0, group_.rank() * own - wanted, wanted);
}

at::Tensor RowSlices::state_before(const at::Tensor& transition_NKK,
                                   const at::Tensor& state_NKV) const {
  const int64_t K = transition_NKK.size(2), V = state_NKV.size(2);
  const at::Tensor maps_PNKX =
      all_gather(at::cat({transition_NKK, state_NKV}, 2).unsqueeze(0), group_);
  at::Tensor before_NKV = at::zeros_like(state_NKV);
  for (int p = 0; p < group_.rank(); ++p) {
    const at::Tensor map_NKX = maps_PNKX[p];
    before_NKV = at::baddbmm(map_NKX.narrow(2, K, V), map_NKX.narrow(2, 0, K), before_NKV);
  }
  // All ranks must take part in the gather's backward.
  if (group_.rank() == 0) before_NKV = before_NKV + maps_PNKX.narrow(3, K, V)[0] * 0;
  return before_NKV;
}

}  // namespace longspan
