// Keys and values that are made of fewer numbers a token (multi-head latent attention, arXiv
// 2405.04434). S: tokens, M: kv heads, H: numbers in a head, J: numbers that they are made of.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace longspan {

/// How a layer makes them. Outside of autograd, as the steps of a TokenMixer.
class LatentKeys {
 public:
  virtual ~LatentKeys() = default;

  struct Heads {
    at::Tensor k_SMH, v_SMH;
  };
  /// Of any tokens of the row.
  virtual Heads expand(const at::Tensor& x_SJ) const = 0;
  /// d loss / d (keys, values), in the dtype of x -> d loss / d x. Adds gradients of parameters.
  virtual at::Tensor backward(const at::Tensor& x_SJ, const Heads& gradients) const = 0;
  /// The same of some of these kv heads. Adds to gradients of the same parameters.
  virtual std::shared_ptr<const LatentKeys> of_heads(int64_t begin, int64_t count) const = 0;
  /// Those; some may be undefined.
  virtual std::vector<at::Tensor> parameters() const = 0;
};

/// Keys and values, differentiable by autograd.
LatentKeys::Heads expanded(const at::Tensor& x_TJ, const std::shared_ptr<const LatentKeys>& keys);

}  // namespace longspan
