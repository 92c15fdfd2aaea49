// Keys: `longspan export`.
#include "longspan/config/config.h"
#include "longspan/config/key_tables.h"

namespace longspan::key_tables {

KeySection export_keys() {
  using S = ExportSettings;
  using enum OnResume;
  Key export_size =
      number("export_size", &S::export_size, kFree, 0, "Largest weight file, in GB.", 1e9);
  export_size.above_least = true;
  return {"Export (longspan export)",
          {plain("export_dir", &S::export_dir, kFree, "Where the merged model is written."),
           export_size}};
}

}  // namespace longspan::key_tables
