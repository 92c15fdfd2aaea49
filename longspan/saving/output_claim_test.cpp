#include "longspan/saving/output_claim.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <optional>

#include "longspan/saving/output_folders.h"
#include "longspan/testing/temporary_folder.h"

namespace longspan {

namespace fs = std::filesystem;

TEST_CASE("output claim: output_dir and the run's own folder of the fallback are held together") {
  const testing::TemporaryFolder place;
  const std::vector<SourceFolder> sources{{"model_name_or_path", "/tmp"}};
  OutputSettings config;
  config.output_dir = place / "run";
  config.fallback_output_dir = place / "other";
  const std::string fallback = fallback_folder(config);
  {
    const OutputClaim claim(config, sources, /*is_restart=*/false);
    CHECK(fs::exists(config.output_dir + "/" + kLockFile));
    CHECK(fs::exists(fallback + "/" + kLockFile));
    CHECK_THROWS_AS(OutputClaim(config, sources, false), FolderBusyError);
    CHECK_THROWS_AS(OutputClaim(config, sources, true), FolderBusyError);
    CHECK_THROWS_AS(check_output_folders(config, sources), FolderBusyError);
  }
  CHECK(place.num_files() == 0);  // no folder made for the lock remains either
  CHECK_NOTHROW(check_output_folders(config, sources));
  {
    const FolderLock elsewhere("fallback_output_dir", fallback);
    CHECK_THROWS_WITH_AS(OutputClaim(config, sources, false),
                         doctest::Contains(("fallback_output_dir " + fallback).c_str()),
                         FolderBusyError);
    CHECK_FALSE(fs::exists(config.output_dir));
  }
  // A refused run leaves nothing either.
  place.write("run/config.json", "{}");
  CHECK_THROWS_WITH_AS(OutputClaim(config, sources, false),
                       doctest::Contains("overwrite_output_dir"), UserError);
  CHECK_FALSE(fs::exists(config.output_dir + "/" + kLockFile));
  CHECK_FALSE(fs::exists(place / "other"));
}

TEST_CASE("output claim: a checkpoint that was being replaced has its name again") {
  const testing::TemporaryFolder place;
  const std::vector<SourceFolder> sources{{"model_name_or_path", "/tmp"}};
  OutputSettings config;
  config.output_dir = place / "run";
  config.overwrite_output_dir = true;
  place.write("run/.checkpoint-4.replaced/config.json", "{}");
  // The leftovers on a network disk of a checkpoint that was removed while it was read.
  place.write("run/.checkpoint-6.replaced/training_state/.nfs0123456789abcdef00000001", "{}");
  place.write("thesis/chapter", "1");
  fs::create_directory_symlink(place / "thesis", place / "run/.checkpoint-5.replaced");
  {
    const FolderLock other("output_dir", config.output_dir);
    CHECK_THROWS_AS(OutputClaim(config, sources, false), FolderBusyError);
    CHECK(fs::exists(place / "run/.checkpoint-4.replaced"));  // the other run's
  }
  const OutputClaim claim(config, sources, false);
  CHECK(fs::exists(place / "run/checkpoint-4/config.json"));
  CHECK(fs::is_symlink(place / "run/.checkpoint-5.replaced"));
  CHECK_FALSE(fs::exists(place / "run/checkpoint-6"));
}

}  // namespace longspan
