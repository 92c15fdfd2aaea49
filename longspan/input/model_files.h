// Which files belong to a model's folder. A folder may come from a stranger: a link in it could
// make the program read any file, and copy it into what it saves. No torch.
#pragma once

#include <string>

namespace longspan {

/// Returns folder/name for opening. Call it for every file that is read or copied from the folder
/// of a model, an adapter, a tokenizer or a checkpoint. The file need not exist. Throws UserError
/// (with the link, its target and a remedy) where the name is a link, or is reached through one,
/// that leaves the folder or is broken. The folder itself may be a link. Follows links of Hugging
/// Face's cache, from REPOSITORY/snapshots/REVISION to REPOSITORY/blobs.
std::string model_file(const std::string& folder, const std::string& name);

/// The same check for all files in the folder that the program reads by their kind. Throws
/// UserError for the first by name. Accepts a folder that cannot be read.
void require_own_files(const std::string& folder);

}  // namespace longspan
