//! Response bodies that are generated while they are sent.

use bytes::Bytes;
use futures_util::{Stream, TryStreamExt as _};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use tollgate_layers::{Error, body::AnswerBody, error::BoxError};

/// Returns a body that is generated piece by piece: each piece is generated after the previous one was sent. An error
/// aborts the response.
pub(crate) fn streamed(
    pieces: impl Stream<Item = Result<Bytes, BoxError>> + Send + 'static,
) -> AnswerBody {
    StreamBody::new(pieces.map_ok(Frame::data).map_err(Error::Internal)).boxed_unsync()
}

#[cfg(test)]
mod tests {
    use futures_util::stream;
    use http_body::Body;
    use tollgate_layers::body::full;

    use super::*;

    #[tokio::test]
    async fn complete_body_has_a_length_and_streamed_body_ends_at_an_error() {
        let whole = full(Bytes::from_static(b"abc"));
        assert_eq!(whole.size_hint().exact(), Some(3));
        assert_eq!(whole.collect().await.unwrap().to_bytes(), "abc");

        let pieces = || [Ok(Bytes::from_static(b"a")), Ok(Bytes::from_static(b"b"))];
        let good = streamed(stream::iter(pieces()));
        assert_eq!(good.size_hint().exact(), None);
        assert_eq!(good.collect().await.unwrap().to_bytes(), "ab");

        let broken = pieces().into_iter().chain([Err("disk".into())]);
        let broken = streamed(stream::iter(broken));
        let Err(Error::Internal(cause)) = broken.collect().await else {
            panic!("it was not broken off");
        };
        assert_eq!(cause.to_string(), "disk");
    }
}
