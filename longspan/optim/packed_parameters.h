// Frozen matrices that are held in 4 or 8 bits, and exist in the dtype of computation only during
// use.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "longspan/comm/group.h"
#include "longspan/parameters/named_tensor.h"
#include "longspan/parameters/parameter_hooks.h"
#include "longspan/parameters/parameter_source.h"
#include "longspan/spec/packed_format.h"

namespace longspan {

/// A frozen matrix, and the format in which it is held.
struct PackedSource {
  ParameterSource source;
  PackedFormat format;
};

struct PackingOptions {
  at::Device device = at::kCPU;
  /// The ranks that together hold one copy of the packed bytes (ZeRO 3); one rank: each rank holds
  /// all bytes.
  Group shard = {};
};

/// The frozen matrices of a model on one rank. Before a use of a unit, its matrices are unpacked,
/// and with several ranks gathered first; afterwards their memory is freed. The tensor objects stay
/// valid. With several ranks, each must make its object from the same sources and use it in the
/// same order.
class PackedParameters : public ParameterHooks {
 public:
  /// Makes and packs one tensor of the files at a time, or takes the packed bytes that its source
  /// makes: parts of one tensor, which are consecutive, are packed together, as bitsandbytes packs
  /// the tensor. `others`: the hooks of the model's other parameters, which are called too; null:
  /// none.
  PackedParameters(const std::vector<PackedSource>& sources, const PackingOptions& options,
                   ParameterHooks* others);
  ~PackedParameters() override;

  /// The matrices, in the order of the sources.
  const std::vector<NamedTensor>& parameters() const { return parameters_; }
  /// The codes and scales that products take, for the matrices whose format has such products
  /// (multiplies_codes). Named NAME + kCodesEnding and NAME + kScalesEnding.
  const std::vector<NamedTensor>& codes() const { return codes_; }
  /// Bytes that this rank holds between uses.
  int64_t held_bytes() const;

  void before(int unit, Use use, int next) override;
  void after(int unit, Use use) override;
  /// Must be called after each backward pass: frees the units whose last use has not been
  /// announced.
  void end_backward();

  /// Calls `see` with each matrix, unpacked; the tensor is valid until `see` returns. Collective
  /// over the ranks that hold one copy.
  void for_each_whole(const std::function<void(const NamedTensor&)>& see);

 private:
  struct Unit;
  void unpack(Unit& unit) const;
  static void release(Unit& unit);

  PackingOptions options_;
  ParameterHooks* others_;
  std::vector<NamedTensor> parameters_, codes_;
  std::map<int, std::unique_ptr<Unit>> units_;
};

}  // namespace longspan
