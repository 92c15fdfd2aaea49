// The policy on disk, for a server of rollouts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "longspan/saving/saving.h"
#include "longspan/session/session.h"

namespace longspan {

/// Folders of the model, or of the adapter: `folder`/version-N after N updates. A folder under its
/// final name is complete.
class PolicyFolders {
 public:
  /// `session`, `world` and `notices` must outlive this object. `chat`: as for Session::saver().
  PolicyFolders(Session& session, const Group& world, Notices& notices,
                const std::optional<SavedChat>& chat, std::string folder);

  /// Writes the policy. The first call removes the folders of an earlier run. Returns the absolute
  /// path of the new folder. Collective; throws as all_or_none.
  std::string write(int64_t version);
  /// Returns the absolute path that write() returns for a version. Any thread may call it.
  std::string absolute_path_of(int64_t version) const;
  /// Removes the folder of a version. Rank 0 only.
  void remove(int64_t version) const;

 private:
  std::string path_of(int64_t version) const;
  void remove_earlier() const;

  Session& session_;
  const Group& world_;
  Notices& notices_;
  ModelSaver saver_;
  std::string folder_;
  bool is_first_ = true;
};

}  // namespace longspan
