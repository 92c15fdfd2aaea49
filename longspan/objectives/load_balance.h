// The auxiliary load-balancing loss of mixtures of experts. L: layers, E: experts.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace longspan {

/// Returns the gradient of the loss coefficient * E * sum_e f_e P_e (Switch Transformers, arXiv
/// 2101.03961, equations 4 to 6, as in transformers' load_balancing_loss_func) with respect to the
/// scores of a token, [E]. The gradient is the same for all tokens. f_e is the mean number of
/// choices of expert e per token, P_e the mean score, both over all tokens and layers. counts_LE
/// (fp64): choices of each expert in each layer; a token makes `experts_per_token` choices in a
/// layer. f_e has no gradient. Therefore a subset of the tokens contributes to the loss the sum
/// over experts of this gradient times the subset's summed scores. The result is on the device of
/// counts_LE, without a host sync.
at::Tensor load_balance_gradient(const at::Tensor& counts_LE, int64_t experts_per_token,
                                 double coefficient);

}  // namespace longspan
