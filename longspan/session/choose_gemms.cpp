#include "longspan/session/choose_gemms.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>

#include "longspan/cuda/gpu_error.h"
#include "longspan/memory/out_of_memory.h"
#include "longspan/text/deferred_warnings.h"

namespace longspan {

std::string gemms_of_library(const std::vector<UsedGemm>& gemms,
                             const std::function<grouped::GemmTimes(const UsedGemm&)>& time) {
  std::string wins(gemms.size(), '0');
  for (size_t i = 0; i < gemms.size(); ++i) {
    try {
      if (time(gemms[i]).library_wins()) wins[i] = '1';
    } catch (const c10::Error& error) {
      const std::string what = error.what_without_backtrace();
      // No other kernel can run after an error of the GPU.
      if (is_error_of_gpu(what)) throw;
      // Longspan's kernel copies no rows, and the run may need less than its measurement.
      if (is_out_of_memory(error)) continue;
      defer_warning(
          fmt::format("warning: at::_grouped_mm cannot be used for experts on this GPU: {}. "
                      "Longspan's kernels take its place.",
                      what.substr(0, what.find('\n'))));
      return std::string(gemms.size(), '0');
    }
  }
  return wins;
}

std::vector<ExpertGemm> agreed_gemms(const std::vector<UsedGemm>& gemms, const std::string& wins,
                                     const Group& world) {
  std::string all = wins;
  for (const std::string& other : world.gather_text(wins)) {
    if (other.size() != gemms.size()) return {};
    for (size_t i = 0; i < all.size(); ++i) all[i] = std::min(all[i], other[i]);
  }
  std::vector<ExpertGemm> agreed;
  for (size_t i = 0; i < gemms.size(); ++i) {
    if (all[i] == '1') agreed.push_back(gemms[i].gemm);
  }
  return agreed;
}

}  // namespace longspan
