// Operators whose backward is written by hand have no second derivative. Autograd would take the
// gradients of such a backward for constants without a word.
#pragma once

#include <ATen/core/Tensor.h>

namespace longspan {

/// Throws in a backward with create_graph=True, with the function's name. Called in the backward.
void refuse_second_derivative(const char* function);

/// Returns x, whose backward calls refuse_second_derivative(). x: a result that autograd may have
/// recorded.
at::Tensor with_one_derivative(at::Tensor x, const char* function);

}  // namespace longspan
