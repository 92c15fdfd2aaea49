#include "cli/process/resources.h"

#include <c10/core/AllocatorConfig.h>
#include <doctest/doctest.h>

#include <cstdlib>
#include <string>

namespace longspan {
namespace {

constexpr const char* kNew = "PYTORCH_ALLOC_CONF";
constexpr const char* kOld = "PYTORCH_CUDA_ALLOC_CONF";

TEST_CASE("memory of a GPU is taken as torch understands it, unless the environment says how") {
  for (const char* name : {kNew, kOld}) {
    unsetenv(kNew);
    unsetenv(kOld);
    setenv(name, "max_split_size_mb:512", /*overwrite=*/1);
    choose_allocation();
    CHECK(std::string(std::getenv(name)) == "max_split_size_mb:512");
    CHECK(std::getenv(name == kNew ? kOld : kNew) == nullptr);
  }
  unsetenv(kNew);
  unsetenv(kOld);
  choose_allocation();
  const char* const settings = std::getenv(kOld);
  REQUIRE(settings != nullptr);
  c10::CachingAllocator::setAllocatorSettings(settings);
  const auto is_understood = []<typename Config>() {
    if constexpr (requires { Config::pinned_max_round_threshold(); }) {
      if (Config::pinned_max_round_threshold() != size_t{1} << 20) return false;
    }
    return Config::use_expandable_segments();
  };
  CHECK(is_understood.operator()<c10::CachingAllocator::AcceleratorAllocatorConfig>());
  unsetenv(kOld);
}

}  // namespace
}  // namespace longspan
