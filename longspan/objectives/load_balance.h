// The auxiliary load-balancing loss of mixtures of experts. L: layers, E: experts.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace longspan {

/// coefficient * E * sum_e f_e P_e (Switch Transformers, arXiv 2101.03961, equations 4 to 6, as
/// transformers' load_balancing_loss_func has it): f_e is how many of its choices a token gives to
/// expert e, P_e its score, both means over all tokens and layers. Given how many choices went to
/// each expert of each layer, counts_LE (fp64), of which a token has `experts_per_token` in a
/// layer: d loss / d score of any token, [E]. f_e has no gradient, so the loss itself is the sum
/// over experts of this times the sum of their scores, whatever part of the tokens these are of.
/// It is where the counts are, for which no host waits.
at::Tensor load_balance_gradient(const at::Tensor& counts_LE, int64_t experts_per_token,
                                 double coefficient);

}  // namespace longspan
