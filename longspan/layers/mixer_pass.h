// A layer's mixer sublayer, h + mixer(norm(h)), for any TokenMixer. T: tokens, L: wanted rows of
// the output, D: model dim.
#pragma once

#include <memory>
#include <vector>

#include "longspan/layers/layer.h"

namespace longspan {

/// Returns the output of the rows `rows_L`, or of all rows where `rows_L` is undefined. Saves h,
/// and the tensors that the mixing and the steps before it save.
at::Tensor mixer_sublayer(const at::Tensor& h_TD, const Layer& layer, const RowContext& row,
                          const at::Tensor& rows_L);

/// Whether the mixer's projections are computed in parts, between the attention's exchanges.
bool overlaps(const Layer& layer, const RowContext& row);

/// The functions below are the steps of mixer_sublayer(), for gradient checkpointing, which saves
/// and replays the mixing between these steps. Outside autograd.
///
/// Returns the mixer's inputs of norm(h), computed one chunk of rows at a time.
std::vector<at::Tensor> mixer_inputs(const at::Tensor& h_TD, const Layer& layer,
                                     const RowContext& row);
/// Takes d loss / d inputs. With `wants_input`, adds d loss / d h, through the mixer's first steps
/// and the norm, to dh_TD in place. Adds the gradients of the parameters.
void mixer_inputs_backward(const std::vector<at::Tensor>& gradients, const at::Tensor& h_TD,
                           at::Tensor dh_TD, bool wants_input, const Layer& layer,
                           const RowContext& row);

/// Returns the layer's mixer, or a copy with another last step. If `rows_L` is defined, the copy's
/// last step computes the rows `rows_L` only. If `dtype` is given, the matrices of the copy's last
/// step are cast to `dtype` once.
std::shared_ptr<const TokenMixer> with_output_of(const Layer& layer, const at::Tensor& rows_L,
                                                 std::optional<at::ScalarType> dtype = {});
/// Returns the last step of `mixer` on the mixed rows, in the dtype of h, without h. Outside
/// autograd.
at::Tensor mixer_output_alone(const at::Tensor& h_CD, const at::Tensor& mixed_C,
                              const TokenMixer& mixer, const RowRange& rows);
/// Returns h + the last step of `mixer` on the mixed rows, through the norm, if any. Has an
/// autograd graph where a gradient is needed.
at::Tensor mixer_output(const at::Tensor& h_LD, const at::Tensor& mixed_L,
                        const std::shared_ptr<const TokenMixer>& mixer, const OutputNorm& norm,
                        const RowContext& row);

}  // namespace longspan
