#include "longspan/sequence_parallel/picture_shares.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "longspan/comm/differentiable.h"

namespace longspan {
namespace {

at::Tensor indices(const std::vector<int64_t>& values, at::Device device) {
  return at::tensor(at::ArrayRef<int64_t>(values), at::TensorOptions(at::kLong)).to(device);
}

int64_t features_of_frame(const Picture& picture) { return picture.num_features / picture.grid.t; }

}  // namespace

PictureShares share_pictures(const RowPictures& pictures, int num_ranks, const FrameCost& cost) {
  struct Work {
    PictureFrame frame;
    double cost;
    int rank;
  };
  std::vector<Work> works;
  for (size_t i = 0; i < pictures.pictures.size(); ++i) {
    const PictureGrid& grid = pictures.pictures[i].grid;
    for (int64_t t = 0; t < grid.t; ++t) {
      works.push_back({{i, t}, cost(grid.h * grid.w), 0});
    }
  }
  std::vector<size_t> order(works.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order,
                           [&](size_t a, size_t b) { return works[a].cost > works[b].cost; });
  std::vector<double> load(static_cast<size_t>(num_ranks), 0.0);
  for (const size_t i : order) {
    const auto least = std::ranges::min_element(load);
    *least += works[i].cost;
    works[i].rank = static_cast<int>(least - load.begin());
  }
  PictureShares shares;
  shares.frames.resize(static_cast<size_t>(num_ranks));
  std::vector<int64_t> num_features(static_cast<size_t>(num_ranks), 0);
  for (const Work& work : works) {
    const auto rank = static_cast<size_t>(work.rank);
    shares.frames[rank].push_back(work.frame);
    for (int64_t i = 0; i < features_of_frame(pictures.pictures[work.frame.picture]); ++i) {
      shares.rank.push_back(work.rank);
      shares.index.push_back(num_features[rank]++);
    }
  }
  return shares;
}

at::Tensor exchange_features(const at::Tensor& own_fE, const PictureShares& shares,
                             const RowPictures& pictures, const Group& group) {
  const auto num_ranks = static_cast<size_t>(group.size());
  const auto self = static_cast<size_t>(group.rank());
  std::vector<int64_t> sent, send_rows(num_ranks, 0), recv_rows(num_ranks, 0);
  for (size_t to = 0; to < num_ranks; ++to) {
    for (const int64_t feature : pictures.wanted.at(to)) {
      if (shares.rank[feature] != group.rank()) continue;
      sent.push_back(shares.index[feature]);
      ++send_rows[to];
    }
  }
  for (const int64_t feature : pictures.wanted.at(self)) ++recv_rows[shares.rank[feature]];
  // The place of each wanted feature among the received ones, which come by rank.
  std::vector<int64_t> next(num_ranks, 0), places;
  std::exclusive_scan(recv_rows.begin(), recv_rows.end(), next.begin(), int64_t{0});
  for (const int64_t feature : pictures.wanted[self])
    places.push_back(next[shares.rank[feature]]++);
  const at::Device device = own_fE.device();
  const at::Tensor received_FE =
      all_to_all_rows(own_fE.index_select(0, indices(sent, device)), send_rows, recv_rows, group);
  return received_FE.index_select(0, indices(places, device));
}

}  // namespace longspan
