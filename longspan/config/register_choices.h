// Values and help of keys that the registers of methods, stages and optimizers define. No torch.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace longspan {

/// For sequence_parallel_mode.
std::vector<std::string_view> auto_or_methods();
/// For sequence_parallel_head_waves.
std::string help_of_waves();

/// For stage.
std::vector<std::string_view> names_of_stages();
std::string help_of_stages();

/// For optim.
std::vector<std::string_view> names_of_optimizers();
std::string help_of_optimizers();

}  // namespace longspan
