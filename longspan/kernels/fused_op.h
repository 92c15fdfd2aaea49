// Operations with a backward written by hand.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace longspan {

/// Returns d loss / d inputs for d loss / d outputs; an undefined tensor for an input without a
/// gradient. The function may overwrite and return a gradient that no other code owns
/// (is_sole_owner).
using Backward = std::function<std::vector<at::Tensor>(std::vector<at::Tensor>)>;

/// Adds `outputs`, computed without autograd from `inputs`, to the autograd graph. `backward` holds
/// the tensors that it needs. `backward` is called once and destroyed when it returns, so its
/// tensors are freed during the backward pass, and `backward` may overwrite them. `backward` itself
/// adds gradients of parameters to .grad (see add_gradient), so parameters are not among `inputs`.
/// `parameters` only shows whether any parameter trains.
///
/// Call attach_backward() only where needs_backward(inputs, parameters). The outputs must be new
/// tensors.
std::vector<at::Tensor> attach_backward(std::vector<at::Tensor> outputs,
                                        const std::vector<at::Tensor>& inputs,
                                        const std::vector<at::Tensor>& parameters,
                                        Backward backward);

/// Whether no other tensor or owner shares this memory.
bool is_sole_owner(const at::Tensor& x);

/// Whether autograd is on and any of these needs a gradient. Undefined tensors need no gradient.
bool needs_backward(const std::vector<at::Tensor>& inputs,
                    const std::vector<at::Tensor>& parameters);

}  // namespace longspan
