//! Decompresses request bodies that are compressed with gzip.

use std::{future::poll_fn, io::Read, task::Poll};

use bytes::{Bytes, BytesMut};
use flate2::read::MultiGzDecoder;

use crate::{
    body_budget::ReservedBytes,
    error::{Error, Problem},
};

/// The number of bytes that are decompressed before other tasks get a turn.
const STEP_BYTES: usize = 256 * 1024;

/// Decompresses a body into at most `bytes_max` bytes, and reserves memory for the bytes as they are decompressed.
///
/// # Errors
/// [`Error::BodyTooLarge`] if the decompressed body is larger than `bytes_max`, [`Error::Overloaded`] if the memory
/// budget has no room for it, [`Error::Invalid`] if the body is not gzip.
pub(super) async fn decompressed(
    packed: &Bytes,
    bytes_max: u64,
    room: &mut ReservedBytes,
) -> Result<Bytes, Error> {
    let invalid = || {
        let problem = Problem::NotJson("the body does not decompress as gzip".to_owned());
        Error::invalid("", problem)
    };
    let mut decoder = MultiGzDecoder::new(&packed[..]);
    let mut body = BytesMut::new();
    let mut buffer = vec![0; STEP_BYTES];
    loop {
        let mut filled = 0;
        while filled < buffer.len() {
            match decoder.read(&mut buffer[filled..]).map_err(|_| invalid())? {
                0 => break,
                count => filled += count,
            }
        }
        let bytes = (body.len() + filled) as u64;
        if bytes > bytes_max {
            return Err(Error::BodyTooLarge { bytes_max });
        }
        // The compressed body stays in memory until it is completely decompressed, so the bytes of both bodies count.
        room.make(packed.len() as u64 + bytes)?;
        body.extend_from_slice(&buffer[..filled]);
        if filled < buffer.len() {
            return Ok(body.freeze());
        }
        pause().await;
    }
}

/// Yields to the other tasks of the runtime.
async fn pause() {
    let mut has_paused = false;
    poll_fn(|cx| {
        if has_paused {
            return Poll::Ready(());
        }
        has_paused = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::{Compression, write::GzEncoder};

    use super::*;
    use crate::body_budget::BodyBudget;

    fn packed(body: &[u8]) -> Bytes {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(body).unwrap();
        encoder.finish().unwrap().into()
    }

    fn room(all: &BodyBudget) -> ReservedBytes {
        ReservedBytes::new(all, None, 1 << 20, 4 << 20)
    }

    #[tokio::test]
    async fn gzip_body_is_decompressed_to_the_original_bytes() {
        for body in [
            &b""[..],
            b"{\"model\":\"m\"}",
            &vec![b'a'; STEP_BYTES],
            &vec![b'a'; 1 << 20],
        ] {
            let all = BodyBudget::default();
            let unpacked = decompressed(&packed(body), 1 << 20, &mut room(&all))
                .await
                .unwrap();
            assert!(unpacked == body, "{}", body.len());
            assert_eq!(all.taken(), 0, "the reservation was dropped");
        }
        // A gzip body may have several members; their decompressed contents together are the body.
        let two: Bytes = [packed(b"{\"a\":"), packed(b"1}")].concat().into();
        let unpacked = decompressed(&two, 100, &mut room(&BodyBudget::default()))
            .await
            .unwrap();
        assert_eq!(unpacked, "{\"a\":1}");
    }

    #[tokio::test]
    async fn gzip_bomb_is_refused_at_the_size_limit() {
        let bomb = packed(&vec![b'a'; 64 << 20]);
        assert!(bomb.len() < 100_000);
        let all = BodyBudget::default();
        let mut room = room(&all);
        let error = decompressed(&bomb, 1 << 20, &mut room).await.unwrap_err();
        assert!(matches!(error, Error::BodyTooLarge { bytes_max } if bytes_max == 1 << 20));
        assert!(all.taken() <= (1 << 20) + bomb.len() as u64);
    }

    #[tokio::test]
    async fn body_that_is_not_gzip_is_refused() {
        let whole = packed(b"{\"model\":\"m\"}");
        let cut = whole.slice(..whole.len() - 5);
        let longer: Bytes = [&whole[..], b"{}"].concat().into();
        for body in ["{}".into(), cut, longer] {
            let error = decompressed(&body, 1 << 20, &mut room(&BodyBudget::default())).await;
            assert!(matches!(error, Err(Error::Invalid { .. })), "{error:?}");
        }
    }
}
