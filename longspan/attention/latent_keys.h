// Keys and values computed from latents: vectors with fewer elements per token than all keys and
// values (multi-head latent attention, arXiv 2405.04434). S: tokens, M: kv heads, H: elements of a
// head, J: elements of a latent.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace longspan {

/// A layer's computation of keys and values from latents. Calls are outside autograd, like the
/// steps of a TokenMixer.
class LatentKeys {
 public:
  virtual ~LatentKeys() = default;

  struct Heads {
    at::Tensor k_SMH, v_SMH;
  };
  /// Returns k_SMH and v_SMH of the latents x_SJ. The tokens may be any tokens of the row.
  virtual Heads expand(const at::Tensor& x_SJ) const = 0;
  /// Returns d loss / d x_SJ. `gradients`: gradients of keys and values, in the dtype of x. Adds to
  /// the gradients of the parameters.
  virtual at::Tensor backward(const at::Tensor& x_SJ, const Heads& gradients) const = 0;
  /// Returns a LatentKeys for the kv heads [begin, begin + count) only. The backward of the
  /// returned object adds to the gradients of the same parameters.
  virtual std::shared_ptr<const LatentKeys> of_heads(int64_t begin, int64_t count) const = 0;
  /// Returns the parameters of expand(). Some tensors may be undefined.
  virtual std::vector<at::Tensor> parameters() const = 0;
};

/// Returns keys->expand(x_TJ), differentiable by autograd.
LatentKeys::Heads expanded(const at::Tensor& x_TJ, const std::shared_ptr<const LatentKeys>& keys);

}  // namespace longspan
