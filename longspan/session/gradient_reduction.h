// Reduces the gradients of all ranks to the gradient of the global loss.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "longspan/comm/group.h"
#include "longspan/memory/side_stream.h"
#include "longspan/optim/last_backward.h"
#include "longspan/parameters/named_tensor.h"
#include "longspan/parameters/parameter_hooks.h"
#include "longspan/spec/parameter_spec.h"

namespace longspan {

/// Small gradients are concatenated in buckets of this size.
constexpr int64_t kGradientBucketBytes = int64_t{4} << 20;

/// The sums of whole parameters' gradients over `world`, in place. Each rank holds the gradient of
/// its contribution to the global loss, so the sum is the gradient of the global loss, without
/// averaging. A rank without rows contributes zeros. Small gradients share buckets; each large
/// gradient is reduced separately. The sums of a step's last row start during its backward, as its
/// hooks announce complete units.
class WholeGradientSums : public ParameterHooks {
 public:
  /// `others`: further hooks, which are called too; null: none.
  WholeGradientSums(std::vector<NamedTensor> parameters, const ParameterTable& specs,
                    const Group& world, ParameterHooks* others = nullptr,
                    int64_t bucket_bytes = kGradientBucketBytes);

  void before(int unit, Use use, int next) override;
  void after(int unit, Use use) override;

  /// As the members of ShardedParameters.
  void begin_last_row() { last_.begin(); }
  void start_sums();
  /// Starts and completes the sums. Collective.
  void finish();
  /// Completes the sums that have started, of an abandoned step. Collective.
  void abandon();

 private:
  struct Bucket {
    std::vector<at::Tensor> parameters;
    int unit;  // with which its gradients are complete; kAlwaysThere: at the end of the backward
    std::vector<at::Tensor> gradients = {};
    at::Tensor flat = {};  // undefined: a single gradient, without a copy
    std::optional<Pending> sum = {};
  };

  /// Starts the sums of this unit and of those above it.
  void start_from(int unit);
  void start(Bucket& bucket);
  void receive(Bucket& bucket);
  void receive_all();

  Group world_;
  ParameterHooks* others_;
  SideStream side_;
  LastBackward last_;
  std::vector<Bucket> buckets_;  // in the order of their sums
  size_t next_ = 0;              // index in buckets_
  std::vector<Bucket*> in_flight_;
};

/// Sums the gradients after the backward.
void sum_gradients(const std::vector<NamedTensor>& parameters, const ParameterTable& specs,
                   const Group& world, int64_t bucket_bytes = kGradientBucketBytes);

}  // namespace longspan
