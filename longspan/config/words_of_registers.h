// What registers say in the table of keys: values that a key takes, and help that goes through
// them. No torch.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace longspan {

/// Of sequence_parallel_mode.
std::vector<std::string_view> auto_or_methods();
/// Of sequence_parallel_head_waves.
std::string help_of_waves();

/// Of stage.
std::vector<std::string_view> names_of_stages();
std::string help_of_stages();

/// Of optim.
std::vector<std::string_view> names_of_optimizers();
std::string help_of_optimizers();

}  // namespace longspan
