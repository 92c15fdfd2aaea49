#include "longspan/sequence_parallel/picture_shares.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <string>

#include "longspan/spec/vision_spec.h"
#include "longspan/testing/ranks.h"

namespace longspan {
namespace {

/// Qwen2.5-VL's published tower.
VisionSpec published_tower() {
  return {.patch_size = 14,
          .temporal_patch_size = 2,
          .merge_size = 2,
          .depth = 32,
          .hidden_size = 1280,
          .num_heads = 16,
          .output_size = 3584,
          .mlp = {.intermediate_size = 3420, .names = {"gate", "up", "down"}},
          .windows = VisionSpec::Windows{.side = 4, .full_blocks = {7, 15, 23, 31}}};
}

Picture picture_of(PictureGrid grid, const std::string& name) {
  return {.files = {name}, .grid = grid, .num_features = grid.num_patches() / 4};
}

TEST_CASE("picture shares: a mix of sizes and videos is balanced to a tenth") {
  RowPictures row;
  for (int64_t i = 0; i < 24; ++i) {
    row.add(picture_of({1 + (i % 5 == 0 ? 7 : 0), 6 + 2 * (i * 7 % 11), 4 + 2 * (i * 5 % 13)},
                       std::to_string(i)));
  }
  RowPictures two_large;  // a turn each, by the order of the row, would give one rank both
  for (int64_t i = 0; i < 12; ++i) {
    const int64_t side = i == 0 || i == 2 ? 40 : 4;
    two_large.add(picture_of({1, side, side}, std::to_string(i)));
  }
  const VisionSpec tower = published_tower();
  const auto cost = [&](int64_t patches) { return frame_flops(tower, patches); };
  const auto check_balance = [&](const RowPictures& row, int num_ranks) {
    const PictureShares shares = share_pictures(row, num_ranks, cost);
    std::vector<double> work;
    for (const auto& frames : shares.frames) {
      double sum = 0;
      for (const PictureFrame& frame : frames) {
        const PictureGrid& grid = row.pictures[frame.picture].grid;
        sum += cost(grid.h * grid.w);
      }
      work.push_back(sum);
    }
    const double mean = std::accumulate(work.begin(), work.end(), 0.0) / num_ranks;
    CHECK(std::ranges::max(work) <= 1.1 * mean);
  };
  for (const int num_ranks : {2, 3, 4, 8}) check_balance(row, num_ranks);
  check_balance(two_large, 2);
}

TEST_CASE("picture shares: each feature has one place, in the order of its rank's frames") {
  RowPictures row;
  row.add(picture_of({3, 4, 4}, "video"));
  row.add(picture_of({1, 8, 2}, "wide"));
  CHECK(row.add(picture_of({3, 4, 4}, "video")) == 0);  // computed once
  CHECK(row.num_features == 16);
  row.wanted = {{15, 0, 1, 2, 3, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4}};
  const PictureShares shares =
      share_pictures(row, 2, [](int64_t patches) { return static_cast<double>(patches); });
  CHECK(shares.frames[0].size() == 2);
  CHECK(shares.frames[1].size() == 2);
  std::vector<int64_t> next(2, 0);
  for (size_t i = 0; i < shares.rank.size(); ++i) {
    CHECK(shares.index[i] == next[static_cast<size_t>(shares.rank[i])]++);
  }
  const PictureShares alone = share_pictures(row, 1, [](int64_t) { return 1.0; });
  const at::Tensor own = at::arange(16, at::kDouble).unsqueeze(1).requires_grad_();
  const at::Tensor wanted = exchange_features(own, alone, row, Group());
  for (int64_t i = 0; i < 16; ++i) {
    CHECK(wanted[i].item<double>() == static_cast<double>(row.wanted[0][static_cast<size_t>(i)]));
  }
}

TEST_CASE("picture shares: gradients come back once, and bytes are those of features that cross") {
  constexpr int kRanks = 3;
  constexpr int64_t kDim = 5;
  RowPictures row;
  row.add(picture_of({3, 4, 4}, "video"));
  row.add(picture_of({1, 8, 2}, "wide"));
  // Tokens of two ranks, or two tokens of a rank, have the same feature, as in a shared prompt.
  row.wanted = {{0, 1, 2, 3, 15, 0}, {4, 5, 6, 7, 0, 12}, {14, 13, 12, 11, 10, 9, 8}};
  const PictureShares shares =
      share_pictures(row, kRanks, [](int64_t patches) { return static_cast<double>(patches); });
  struct Outcome {
    at::Tensor wanted, gradient;
    int64_t forward = 0, backward = 0;
  };
  std::vector<Outcome> outcomes(kRanks);
  testing::run_ranks(kRanks, [&](const Mesh& mesh) {
    const int rank = mesh.world.rank();
    std::vector<double> numbers;
    for (size_t i = 0; i < shares.rank.size(); ++i) {
      if (shares.rank[i] == rank) numbers.push_back(static_cast<double>(i));
    }
    const at::Tensor own =
        at::tensor(numbers, at::kFloat).unsqueeze(1).repeat({1, kDim}).requires_grad_();
    Outcome& mine = outcomes[static_cast<size_t>(rank)];
    mine.wanted = exchange_features(own, shares, row, mesh.world);
    mine.forward = mesh.world.traffic().features;
    (mine.wanted.sum() * (rank + 1)).backward();
    mine.backward = mesh.world.traffic().features - mine.forward;
    mine.gradient = own.grad();
  });
  std::vector<int64_t> forward(kRanks), backward(kRanks);
  std::vector<double> gradients(shares.rank.size());  // each rank's loss has its own weight
  for (int to = 0; to < kRanks; ++to) {
    const std::vector<int64_t>& wanted = row.wanted[static_cast<size_t>(to)];
    for (size_t i = 0; i < wanted.size(); ++i) {
      const auto feature = static_cast<size_t>(wanted[i]);
      const auto from = static_cast<size_t>(shares.rank[feature]);
      CHECK(outcomes[static_cast<size_t>(to)]
                .wanted[static_cast<int64_t>(i)]
                .eq(wanted[i])
                .all()
                .item<bool>());
      gradients[feature] += to + 1;
      if (from == static_cast<size_t>(to)) continue;
      forward[from] += kDim * int64_t{sizeof(float)};
      backward[static_cast<size_t>(to)] += kDim * int64_t{sizeof(float)};
    }
  }
  for (size_t i = 0; i < shares.rank.size(); ++i) {
    const at::Tensor& of_rank = outcomes[static_cast<size_t>(shares.rank[i])].gradient;
    CHECK(of_rank[shares.index[i]].eq(gradients[i]).all().item<bool>());
  }
  for (size_t rank = 0; rank < kRanks; ++rank) {
    CHECK(outcomes[rank].forward == forward[rank]);
    CHECK(outcomes[rank].backward == backward[rank]);
  }
}

}  // namespace
}  // namespace longspan
