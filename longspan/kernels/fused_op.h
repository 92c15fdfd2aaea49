// Operations whose backward is written by hand.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace longspan {

/// d loss / d outputs -> d loss / d inputs (an undefined tensor where there is none). A gradient
/// that it holds alone (is_sole_owner) may be overwritten and handed on.
using Backward = std::function<std::vector<at::Tensor>(std::vector<at::Tensor>)>;

/// Puts `outputs`, computed without autograd from `inputs`, into the autograd graph. `backward`
/// holds what it needs; it is called once and destroyed as soon as it returns, so that its tensors
/// are freed during the backward pass and may be overwritten by it. It adds gradients of parameters
/// to their .grad by itself (see add_gradient), which is why parameters are no inputs: `parameters`
/// are only looked at to know whether anything trains.
///
/// Call it only where needs_backward(inputs, parameters); the outputs must be fresh tensors.
std::vector<at::Tensor> attach_backward(std::vector<at::Tensor> outputs,
                                        const std::vector<at::Tensor>& inputs,
                                        const std::vector<at::Tensor>& parameters,
                                        Backward backward);

/// Whether nobody else sees this tensor's memory.
bool is_sole_owner(const at::Tensor& x);

/// Whether autograd is on and any of these wants a gradient. Undefined tensors count as no.
bool needs_backward(const std::vector<at::Tensor>& inputs,
                    const std::vector<at::Tensor>& parameters);

}  // namespace longspan
