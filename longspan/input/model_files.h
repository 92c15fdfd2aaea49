// Which files belong to a model's folder. The folder may come from a stranger: a link in it would
// make the program read, and copy into what it saves, whatever the link points to. No torch.
#pragma once

#include <string>

namespace longspan {

/// folder/name, to be opened: every file that is read or copied out of the folder of a model, an
/// adapter, a tokenizer or a checkpoint is asked for here. Nothing needs to be there.
/// Throws UserError (what, where it points, the remedy) when the name is a link, or is reached
/// through one, that leaves the folder or leads nowhere. The folder itself may be a link. Links of
/// Hugging Face's cache are followed: from REPOSITORY/snapshots/REVISION to REPOSITORY/blobs.
std::string model_file(const std::string& folder, const std::string& name);

/// The same of all files in the folder that the program reads by their kind. Throws UserError for
/// the first by name. A folder that cannot be read has none.
void require_own_files(const std::string& folder);

}  // namespace longspan
