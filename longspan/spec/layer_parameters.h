// The parameters of one layer, as its token mixer and its feed-forward list them. No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "longspan/spec/norm_kind.h"
#include "longspan/spec/parameter_spec.h"

namespace longspan {

/// What the names of all parameters within layers begin with.
inline constexpr std::string_view kLayersPrefix = "model.layers.";

/// The name of a layer's parameter, of which `name` is what follows the layer's number
/// (self_attn.q_proj.weight).
std::string layer_parameter_name(int64_t layer, std::string_view name);

/// Which rows of each expert in <module>.<part>.<name> [experts, num_rows, columns] are a matrix of
/// its own, from `begin` on (ParameterSpec::stored_in_stack).
struct RowsOfStack {
  const char* name;
  int64_t begin, num_rows;
};

class LayerParameters {
 public:
  LayerParameters(int64_t layer, int64_t hidden_size, double initializer_range, NormKind norms);

  int64_t hidden_size() const { return hidden_size_; }
  /// Adds <module>.<name>.weight [num_out, num_in], to which LoRA can add an adapter, and where it
  /// has a bias <module>.<name>.bias.
  void linear(const char* module, const char* name, int64_t num_out, int64_t num_in, bool bias);
  /// The same without a bias, of the linear layer that makes keys and values of latents.
  void linear_of_latents(const char* module, const char* name, int64_t num_out, int64_t num_in);
  /// The same, for linear layers below a module's own: <module>.<part>.<name>.weight.
  void linear_of_part(const char* module, const std::string& part, const char* name,
                      int64_t num_out, int64_t num_in, bool bias);
  /// The same of an expert, for <module>.<part>.<i>.<name>.weight, where i is its number.
  void linear_of_expert(const char* module, const char* part, const char* name, int64_t num_out,
                        int64_t num_in, bool bias, const ExpertNumber& expert,
                        const RowsOfStack& stack);
  /// The same for <module>.<part>.<i>.<name>, i from 0 to `count`, each of expert i, which the
  /// files stack: weights as [count, num_in, num_out] in <module>.<part>.<name>, biases as [count,
  /// num_out] in <module>.<part>.<name>_bias.
  void stacked_linears(const char* module, const char* part, const char* name, int64_t count,
                       int64_t num_out, int64_t num_in, bool bias);
  /// Adds <name>.weight [num_experts, hidden], which scores experts, and where it has a bias
  /// <name>.bias.
  void router(const char* module, const std::string& name, int64_t num_experts, bool bias);
  /// Adds <name> [size], which is not trained.
  void buffer(const char* module, const std::string& name, int64_t size);
  /// Adds <name>.weight [size], of a norm of the model's kind.
  void norm(std::string_view module, const std::string& name, int64_t size);
  /// Adds <name> [num_heads], the logits of attention's sinks.
  void sinks(const char* module, const std::string& name, int64_t num_heads);
  /// Says that files store the weights of the last `num_linears` linear layers, which have no
  /// biases, as rows of one tensor, <module>.<name>.weight. These layers share one adapter, which
  /// has that name (shares_adapter()).
  void store_together(const char* module, const char* name, int num_linears);
  /// Adds <name>.weight [size], of a norm of this kind.
  void norm_of_kind(std::string_view module, const std::string& name, int64_t size, NormKind kind);
  /// Adds <name> [size], a bias that begins as ones.
  void bias_of_ones(const char* module, const std::string& name, int64_t size);
  /// Adds <name> [size], logarithms of how fast states decay.
  void log_decay(const char* module, const std::string& name, int64_t size);
  /// Adds <name> [num_channels, 1, width], of a convolution of each channel by itself.
  void convolution(const char* module, const std::string& name, int64_t num_channels,
                   int64_t width);
  std::vector<ParameterSpec> take();

 private:
  ParameterSpec& add(std::string_view module, const std::string& name, std::vector<int64_t> shape,
                     ParameterRole role, Initialisation init);
  /// Adds <linear>.weight, for an adapter by the name `target`.
  ParameterSpec& add_matrix(const char* module, const std::string& linear, const char* target,
                            int64_t num_out, int64_t num_in);
  ParameterSpec& add_bias(const char* module, const std::string& linear, int64_t num_out);

  int64_t layer_, hidden_size_;
  Initialisation matrices_;
  NormKind norms_;
  std::vector<ParameterSpec> parameters_;
};

}  // namespace longspan
