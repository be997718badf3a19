//! Finds the model and its price: `Request<Call>` → `Request<Priced>`. One look at the catalog is the
//! call's snapshot to its end, however long the answer takes.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use http::Request;
use tower::{Layer, Service};

use crate::{
    call::{Call, Priced},
    error::Error,
    facts::Caller,
    key::Funds,
    model::{Found, Models},
    usage::Meter,
};

/// Refuses models that are unknown, unpriced, or not for this key.
///
/// A key with nothing to spend is told so before it is told that a model is unknown; this is the one
/// time that the funds are asked here.
#[derive(Clone, Debug)]
pub struct SelectLayer<M, F> {
    models: M,
    funds: F,
}

impl<M, F> SelectLayer<M, F> {
    /// Selects from `models`.
    pub const fn new(models: M, funds: F) -> Self {
        Self { models, funds }
    }
}

impl<S, M: Clone, F: Clone> Layer<S> for SelectLayer<M, F> {
    type Service = Select<S, M, F>;

    fn layer(&self, inner: S) -> Self::Service {
        Select {
            inner,
            models: self.models.clone(),
            funds: self.funds.clone(),
        }
    }
}

/// The service of [`SelectLayer`].
#[derive(Clone, Debug)]
pub struct Select<S, M, F> {
    inner: S,
    models: M,
    funds: F,
}

impl<S, M, F> Service<Request<Call>> for Select<S, M, F>
where
    S: Service<Request<Priced>, Error = Error> + Send + 'static,
    S::Future: Send + 'static,
    S::Response: 'static,
    M: Models,
    F: Funds + Clone,
{
    type Response = S::Response;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, req: Request<Call>) -> Self::Future {
        let (parts, call) = req.into_parts();
        let caller = parts.extensions.get::<Caller>().cloned();
        let (model, price) = match self.models.find_model(&call.model) {
            Found::Callable(model, price) => (model, price),
            Found::Unpriced => return Box::pin(async { Err(Error::PriceUnavailable) }),
            Found::Unknown => {
                let funds = self.funds.clone();
                return Box::pin(async move {
                    if let Some(Caller(key)) = caller {
                        funds.check(&key).await?;
                    }
                    Err(Error::ModelUnknown { model: call.model })
                });
            }
        };
        if caller.is_some_and(|Caller(key)| !key.allows_model(&model.id)) {
            return Box::pin(async { Err(Error::ModelNotAllowed { model: call.model }) });
        }
        let output_tokens = call.output_tokens.map_or(model.output_tokens_max, |asked| {
            asked.min(model.output_tokens_max)
        });
        let priced = Priced {
            call: Arc::new(call),
            model,
            price,
            output_tokens,
            meter: Meter::default(),
        };
        Box::pin(self.inner.call(Request::from_parts(parts, priced)))
    }
}
