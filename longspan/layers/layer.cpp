#include "longspan/layers/layer.h"

#include <ATen/ATen.h>

#include "longspan/layers/feed_forward_pass.h"
#include "longspan/layers/mixer_pass.h"
#include "longspan/layers/plain_steps.h"

namespace longspan {

void append_parameters(std::vector<at::Tensor>& parameters,
                       const std::vector<const Linear*>& linears) {
  for (const Linear* linear : linears) {
    for (const at::Tensor& parameter : linear->parameters()) parameters.push_back(parameter);
  }
}

std::vector<at::Tensor> Layer::mixer_parameters() const {
  std::vector<at::Tensor> parameters{mixer_norm_D, mixer_output_norm_D};
  for (const auto& some : {mixer->parameters_before(), mixer->parameters_after()}) {
    parameters.insert(parameters.end(), some.begin(), some.end());
  }
  return parameters;
}

std::vector<at::Tensor> Layer::feed_forward_parameters() const {
  std::vector<at::Tensor> parameters{feed_forward_norm_D, feed_forward_output_norm_D};
  const std::vector<at::Tensor> own = feed_forward->parameters();
  parameters.insert(parameters.end(), own.begin(), own.end());
  return parameters;
}

at::Tensor run_layer(const at::Tensor& h_TD, const Layer& layer, const RowContext& row,
                     const at::Tensor& rows_L) {
  return feed_forward_sublayer(mixer_sublayer(h_TD, layer, row, rows_L), layer, row);
}

at::Tensor run_plainly(const at::Tensor& h_TD, const Layer& layer, const RowContext& row,
                       const at::Tensor& rows_L) {
  // Norms after a sublayer take the sublayer's output.
  const auto normed = [&](const at::Tensor& y_TD, const at::Tensor& weight_D) {
    return weight_D.defined() ? plain_norm(y_TD, weight_D, layer.norm_kind, layer.norm_eps) : y_TD;
  };
  const at::Tensor mixed_TD =
      h_TD + normed(layer.mixer->plain(
                        plain_norm(h_TD, layer.mixer_norm_D, layer.norm_kind, layer.norm_eps), row),
                    layer.mixer_output_norm_D);
  const at::Tensor middle_LD = rows_L.defined() ? mixed_TD.index_select(0, rows_L) : mixed_TD;
  return middle_LD +
         normed(layer.feed_forward->plain(plain_norm(middle_LD, layer.feed_forward_norm_D,
                                                     layer.norm_kind, layer.norm_eps)),
                layer.feed_forward_output_norm_D);
}

}  // namespace longspan
