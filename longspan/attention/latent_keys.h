// Keys and values that are made of fewer numbers a token (multi-head latent attention, arXiv
// 2405.04434). S: tokens, M: kv heads, H: numbers in a head, J: numbers that they are made of.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace longspan {

/// How a layer makes keys and values of latents. The calls are outside of autograd, as the steps of
/// a TokenMixer are.
class LatentKeys {
 public:
  virtual ~LatentKeys() = default;

  struct Heads {
    at::Tensor k_SMH, v_SMH;
  };
  /// The keys and values of these tokens, which may be any of the row: x_SJ -> k_SMH, v_SMH.
  virtual Heads expand(const at::Tensor& x_SJ) const = 0;
  /// Takes d loss / d keys and d loss / d values, in the dtype of x, and returns d loss / d x_SJ.
  /// Adds to the gradients of the parameters.
  virtual at::Tensor backward(const at::Tensor& x_SJ, const Heads& gradients) const = 0;
  /// Makes keys and values of the kv heads [begin, begin + count) alone. Its backward adds to the
  /// gradients of the same parameters.
  virtual std::shared_ptr<const LatentKeys> of_heads(int64_t begin, int64_t count) const = 0;
  /// The parameters that expand() uses; some may be undefined.
  virtual std::vector<at::Tensor> parameters() const = 0;
};

/// keys->expand(x_TJ), differentiable by autograd.
LatentKeys::Heads expanded(const at::Tensor& x_TJ, const std::shared_ptr<const LatentKeys>& keys);

}  // namespace longspan
