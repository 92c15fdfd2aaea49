#include "cli/process/resources.h"

#include <c10/core/AllocatorConfig.h>
#include <doctest/doctest.h>
#include <sys/resource.h>

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

TEST_CASE("the limit of open files is raised as far as it goes") {
  rlimit before{}, after{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit low = before;
  low.rlim_cur = 32;
  REQUIRE(setrlimit(RLIMIT_NOFILE, &low) == 0);
  raise_descriptor_limit();
  getrlimit(RLIMIT_NOFILE, &after);
  setrlimit(RLIMIT_NOFILE, &before);
  CHECK(after.rlim_cur == before.rlim_max);
}

}  // namespace
}  // namespace longspan
