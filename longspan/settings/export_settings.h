// Output of `longspan export`. No torch.
#pragma once

#include <string>

namespace longspan {

struct ExportSettings {
  std::string export_dir;
  double export_size = 5.0;  // GB per file
};

}  // namespace longspan
