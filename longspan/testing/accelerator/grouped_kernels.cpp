// S: rows of all groups, E: groups.
#include "longspan/testing/accelerator/grouped_kernels.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "longspan/cuda/rows/arguments.h"
#include "longspan/kernels/arrived_rows.h"

namespace longspan::testing::accelerator {
namespace {

at::ScalarType dtype_of(int is_bf16) { return is_bf16 != 0 ? at::kBFloat16 : at::kFloat; }

/// The inputs of a launch over grouped rows.
class Groups {
 public:
  Groups(const cuda::RowGroups& groups, Arguments& given)
      : given_(given),
        num_groups_(groups.num_groups),
        begins_(given.read(groups.begins, {groups.num_groups + 1}, at::kLong)) {
    given.read(groups.first_tiles, {groups.num_groups}, at::kLong);
    given.read(groups.tile_groups, {1}, at::kLong);
  }

  int64_t num_rows() const { return begin(num_groups_); }

  /// Returns row indices; 0, 1, ... if there are none.
  at::Tensor numbers(const long long* numbers) const {
    if (numbers != nullptr) return given_.read(numbers, {num_rows()}, at::kLong);
    return at::arange(num_rows());
  }
  /// Returns the selected rows in fp32.
  at::Tensor picked(const void* x, const long long* from, int num_columns) const {
    const at::Tensor numbers_S = numbers(from);
    const int64_t last = numbers_S.numel() > 0 ? numbers_S.max().item<int64_t>() : -1;
    const at::Tensor rows = given_.read(x, {last + 1, num_columns}, at::kBFloat16);
    return rows.index_select(0, numbers_S).to(at::kFloat);
  }
  /// Returns a tensor for each group with rows; undefined for the others.
  std::vector<at::Tensor> matrices(const long long* addresses, at::IntArrayRef sizes, int is_bf16,
                                   bool writes) const {
    const at::Tensor at_E = given_.read(addresses, {num_groups_}, at::kLong);
    std::vector<at::Tensor> all(static_cast<size_t>(num_groups_));
    for (int64_t e = 0; e < num_groups_; ++e) {
      if (begin(e) == begin(e + 1)) continue;
      auto* const front = reinterpret_cast<void*>(at_E[e].item<int64_t>());
      all[e] = writes ? given_.change(front, sizes, dtype_of(is_bf16))
                      : given_.read(front, sizes, dtype_of(is_bf16));
    }
    return all;
  }
  /// Calls use(group, begin, count) for each group with rows.
  template <typename Use>
  void for_each(Use&& use) const {
    for (int64_t e = 0; e < num_groups_; ++e) {
      if (begin(e) < begin(e + 1)) use(e, begin(e), begin(e + 1) - begin(e));
    }
  }

 private:
  int64_t begin(int64_t group) const { return begins_[group].item<int64_t>(); }

  Arguments& given_;
  int64_t num_groups_;
  at::Tensor begins_;
};

Compute rows(bool transposed, const cuda::GroupedRows& a, Arguments& given) {
  const Groups groups(a.sorted, given);
  const int64_t columns = a.num_columns;
  const at::Tensor sum = at::zeros({groups.num_rows(), columns});
  for (int i = 0; i < a.num_factors; ++i) {
    const cuda::GroupedFactor& factor = a.factors[i];
    const at::Tensor x = groups.picked(factor.x, factor.from, factor.depth);
    const std::vector<int64_t> sizes = transposed ? std::vector<int64_t>{factor.depth, columns}
                                                  : std::vector<int64_t>{columns, factor.depth};
    const std::vector<at::Tensor> matrices =
        groups.matrices(factor.matrices, sizes, factor.matrices_are_bf16, /*writes=*/false);
    groups.for_each([&](int64_t e, int64_t begin, int64_t count) {
      const at::Tensor w = matrices[e].to(at::kBFloat16).to(at::kFloat);
      sum.narrow(0, begin, count).addmm_(x.narrow(0, begin, count), transposed ? w : w.t());
    });
  }
  sum.mul_(a.scale);
  if (a.biases != nullptr) {
    const std::vector<at::Tensor> biases =
        groups.matrices(a.biases, {columns}, a.biases_are_bf16, /*writes=*/false);
    groups.for_each([&](int64_t e, int64_t begin, int64_t count) {
      sum.narrow(0, begin, count).add_(biases[e]);
    });
  }
  const at::Tensor to = groups.numbers(a.to),
                   y = given.write(a.y, {groups.num_rows(), columns}, at::kBFloat16);
  return [=] { y.index_copy_(0, to, sum.to(at::kBFloat16)); };
}

/// Adds a sum to each group's gradient.
Compute add_to(const std::vector<at::Tensor>& gradients, const std::vector<at::Tensor>& sums) {
  return [=] {
    for (size_t e = 0; e < gradients.size(); ++e) {
      if (sums[e].defined()) gradients[e].copy_(gradients[e].to(at::kFloat) + sums[e]);
    }
  };
}

Compute matrices(const cuda::GroupedMatrices& a, Arguments& given) {
  const Groups groups(a.sorted, given);
  const at::Tensor of_a = groups.picked(a.a.x, a.a.from, a.a.num_columns),
                   of_b = groups.picked(a.b.x, a.b.from, a.b.num_columns);
  const std::vector<at::Tensor> gradients = groups.matrices(
      a.gradients, {a.a.num_columns, a.b.num_columns}, a.gradients_are_bf16, /*writes=*/true);
  std::vector<at::Tensor> sums(gradients.size());
  groups.for_each([&](int64_t e, int64_t begin, int64_t count) {
    sums[e] = of_a.narrow(0, begin, count).t().mm(of_b.narrow(0, begin, count));
  });
  return add_to(gradients, sums);
}

Compute sums(const cuda::GroupedSums& a, Arguments& given) {
  const Groups groups(a.sorted, given);
  at::Tensor x = groups.picked(a.x.x, a.x.from, a.x.num_columns);
  if (a.weights != nullptr) {
    x = x * given.read(a.weights, {groups.num_rows()}, at::kFloat).unsqueeze(1);
  }
  const std::vector<at::Tensor> gradients =
      groups.matrices(a.gradients, {a.x.num_columns}, a.gradients_are_bf16, /*writes=*/true);
  std::vector<at::Tensor> of_groups(gradients.size());
  groups.for_each([&](int64_t e, int64_t begin, int64_t count) {
    of_groups[e] = x.narrow(0, begin, count).sum(0);
  });
  return add_to(gradients, of_groups);
}

Compute tiles(const cuda::GroupTiles& a, Arguments& given) {
  const at::Tensor counts = given.read(a.counts, {a.num_groups}, at::kLong),
                   begins = given.write(a.begins, {a.num_groups + 1}, at::kLong),
                   first_tiles = given.write(a.first_tiles, {a.num_groups}, at::kLong),
                   tile_groups = given.write(a.tile_groups, {a.num_tiles}, at::kLong);
  return [=] {
    begins.zero_();
    begins.narrow(0, 1, counts.size(0)).copy_(counts.cumsum(0));
    const at::Tensor num_tiles = (counts + (cuda::kTileRows - 1)).div(cuda::kTileRows, "floor"),
                     ends = num_tiles.cumsum(0);
    first_tiles.copy_(ends - num_tiles);
    tile_groups.copy_(at::searchsorted(ends, at::arange(tile_groups.size(0)), /*out_int32=*/false,
                                       /*right=*/true));
  };
}

Compute dots(const cuda::GroupedDots& a, Arguments& given) {
  const Groups groups(a.sorted, given);
  const int64_t S = groups.num_rows();
  const at::Tensor x = groups.picked(a.x, a.from, a.num_columns), sums = at::empty({S});
  if (a.vectors == nullptr) {
    sums.copy_((x * given.read(a.y, {S, a.num_columns}, at::kBFloat16)).sum(1));
  } else {
    const std::vector<at::Tensor> vectors =
        groups.matrices(a.vectors, {a.num_columns}, a.vectors_are_bf16, /*writes=*/false);
    groups.for_each([&](int64_t e, int64_t begin, int64_t count) {
      sums.narrow(0, begin, count).copy_((x.narrow(0, begin, count) * vectors[e]).sum(1));
    });
  }
  const at::Tensor to = groups.numbers(a.to), all = a.adds != 0
                                                        ? given.change(a.dots, {S}, at::kFloat)
                                                        : given.write(a.dots, {S}, at::kFloat);
  const bool adds = a.adds != 0;
  return [=] {
    if (adds) {
      all.index_add_(0, to, sums);
    } else {
      all.index_copy_(0, to, sums);
    }
  };
}

Compute combine(const cuda::CombineRows& a, Arguments& given) {
  const at::Tensor sum = given.change(a.sum, {a.num_rows, a.num_columns}, at::kFloat),
                   y = given.read(a.y, {a.num_rows, a.num_parts, a.num_columns}, at::kBFloat16),
                   weights = given.read_if_any(a.weights, {a.num_rows, a.num_parts}, at::kFloat);
  return [=] {
    for (int64_t k = 0; k < y.size(1); ++k) {
      at::Tensor part = y.select(1, k).to(at::kFloat);
      if (weights.defined()) part = part * weights.select(1, k).unsqueeze(1);
      sum.add_(part);
    }
  };
}

Compute cast(const cuda::CastMatrices& a, int64_t num_groups, Arguments& given) {
  const at::Tensor at_E = given.read(a.matrices, {num_groups}, at::kLong),
                   copies = given.write(a.cast, {num_groups, a.size}, at::kBFloat16);
  std::vector<at::Tensor> all;
  for (int64_t e = 0; e < num_groups; ++e) {
    const auto* const front = reinterpret_cast<const void*>(at_E[e].item<int64_t>());
    all.push_back(given.read(front, {a.size}, at::kFloat));
  }
  return [=] { copies.copy_(at::stack(all)); };
}

/// By the host's code.
Compute arrived(const cuda::ArrivedRows& a, Arguments& given) {
  const at::Tensor counts =
      given.read(a.arrived, {a.num_ranks * a.num_experts}, at::kLong).contiguous();
  const auto* const first = counts.const_data_ptr<int64_t>();
  const ArrivedRows rows = order_arrived({first, first + counts.numel()}, a.num_experts);
  const at::Tensor order = given.write(a.order, rows.order_S.sizes(), at::kLong),
                   places = given.write(a.places, rows.places_S.sizes(), at::kLong);
  return [=] {
    order.copy_(rows.order_S);
    places.copy_(rows.places_S);
  };
}

}  // namespace

Compute grouped_kernel(std::string_view name, const cuda::Launch& launch, const void* argument,
                       Arguments& given) {
  if (name == "group_tiles") return tiles(as<cuda::GroupTiles>(argument), given);
  if (name.starts_with("grouped_rows_")) {
    return rows(name.starts_with("grouped_rows_transposed_"), as<cuda::GroupedRows>(argument),
                given);
  }
  if (name == "grouped_matrices") return matrices(as<cuda::GroupedMatrices>(argument), given);
  if (name == "grouped_sums") return sums(as<cuda::GroupedSums>(argument), given);
  if (name == "grouped_dots") return dots(as<cuda::GroupedDots>(argument), given);
  if (name == "cast_matrices") {
    return cast(as<cuda::CastMatrices>(argument), launch.blocks_y, given);
  }
  if (name == "order_arrived") return arrived(as<cuda::ArrivedRows>(argument), given);
  if (name == "combine_rows") return combine(as<cuda::CombineRows>(argument), given);
  return {};
}

}  // namespace longspan::testing::accelerator
