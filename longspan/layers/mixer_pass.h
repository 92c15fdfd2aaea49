// A layer's mixer sublayer, h + mixer(norm(h)), over any TokenMixer.
// T: tokens, L: rows that are wanted, D: model dim.
#pragma once

#include <memory>
#include <vector>

#include "longspan/layers/layer.h"

namespace longspan {

/// Only the rows of `rows_L` where it is defined. Saves h, what the steps before the mixing save,
/// and what the mixing saves.
at::Tensor mixer_sublayer(const at::Tensor& h_TD, const Layer& layer, const RowContext& row,
                          const at::Tensor& rows_L);

/// Whether the mixer's projections are computed part by part, between the attention's exchanges.
bool overlaps(const Layer& layer, const RowContext& row);

/// The steps of mixer_sublayer() one by one, for gradient checkpointing, which saves and replays
/// what lies between them. Outside of autograd.
///
/// The mixer's inputs, of norm(h), a chunk of rows at a time.
std::vector<at::Tensor> mixer_inputs(const at::Tensor& h_TD, const Layer& layer,
                                     const RowContext& row);
/// d loss / d inputs -> adds it, through the mixer's first steps and the norm, to dh_TD in place
/// (where `wants_input`), and gradients of the parameters.
void mixer_inputs_backward(const std::vector<at::Tensor>& gradients, const at::Tensor& h_TD,
                           at::Tensor dh_TD, bool wants_input, const Layer& layer,
                           const RowContext& row);

/// The layer's mixer, whose last step computes the rows of `rows_L` alone where that is defined,
/// and has its matrices cast to `dtype` once where that is given.
std::shared_ptr<const TokenMixer> with_output_of(const Layer& layer, const at::Tensor& rows_L,
                                                 std::optional<at::ScalarType> dtype = {});
/// The last step of `mixer` on the mixed rows, in the dtype of h, without adding h. Outside of
/// autograd.
at::Tensor mixer_output_alone(const at::Tensor& h_CD, const at::Tensor& mixed_C,
                              const TokenMixer& mixer, const RowRange& rows);
/// h + what `mixer` makes of the mixed rows, through the norm where there is one, with a graph
/// where one is wanted.
at::Tensor mixer_output(const at::Tensor& h_LD, const at::Tensor& mixed_L,
                        const std::shared_ptr<const TokenMixer>& mixer, const OutputNorm& norm,
                        const RowContext& row);

}  // namespace longspan
